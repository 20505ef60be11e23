use super::*;
use crate::config::Audit;
use crate::openai::test_cluster::{TestCluster, key};
use rollout_ledger::KeyRole;
use rollout_proto::Security;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(30);

/// A port in plaintext, and the gate of its requests.
async fn listen() -> (Incoming, SocketAddr, Arc<Gate>, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let config = Audit { file: Some(dir.path().join("audit.log")), ..Audit::default() };
    let audit = Arc::new(AuditLog::open("c1", &config).expect("open"));
    let cluster = TestCluster::new();
    cluster.add_key("abcdefgh", "default", KeyRole::Client);
    let gate = Gate::new(cluster.api(), audit);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let tls = ServerTls::for_https(&Security::InsecurePlaintext).expect("no files");
    let incoming = tls.incoming(listener).at_most(16);
    let addr = incoming.local_addr().expect("an address");
    (incoming, addr, gate, dir)
}

async fn ask(stream: &mut TcpStream) -> String {
    let request = format!(
        "GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        key("abcdefgh")
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    let whole = async {
        while !answer.ends_with(b"[]}") {
            assert_ne!(stream.read_buf(&mut answer).await.expect("read"), 0, "closed: {answer:?}");
        }
    };
    tokio::time::timeout(LIMIT, whole).await.expect("in time");
    String::from_utf8(answer).expect("text")
}

#[tokio::test]
async fn a_connection_serves_requests_until_the_member_stops() {
    let (incoming, addr, gate, _dir) = listen().await;
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(incoming, gate, stop.clone()));
    let mut stream = TcpStream::connect(addr).await.expect("connected");
    for _ in 0..2 {
        let answer = ask(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    stop.cancel();
    tokio::time::timeout(LIMIT, serving).await.expect("in time").expect("no panic");
    let mut byte = [0];
    let closed = tokio::time::timeout(LIMIT, stream.read(&mut byte)).await.expect("in time");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[tokio::test]
async fn a_head_over_the_bound_is_refused() {
    let (incoming, addr, gate, _dir) = listen().await;
    let serving = tokio::spawn(serve(incoming, gate, CancellationToken::new()));
    let mut stream = TcpStream::connect(addr).await.expect("connected");
    let head =
        format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}", "a".repeat(4 * HEAD_BYTES_MAX as usize));
    // The member may close the connection before it has read everything.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await.expect("closed");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    serving.abort();
}

#[tokio::test]
async fn only_a_connection_without_progress_has_stalled() {
    let (look_every, silence_max) = (Duration::from_millis(50), Duration::from_millis(100));
    let (busy, silent) = (Progress::default(), Progress::default());
    let working = async {
        loop {
            busy.note();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = working => {}
        () = busy.stalled(look_every, 40 * silence_max) => panic!("it makes progress"),
        () = silent.stalled(look_every, silence_max) => {}
    }
}
