//! One caller leaves places to others: an address is bounded in unfinished handshakes, an identity in connections.

use tokio::net::TcpSocket;

use super::*;

const SOON: Duration = Duration::from_secs(5);

/// A connection from another address of this host.
async fn connect_from(ip: [u8; 4], addr: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((ip, 0))).unwrap();
    socket.connect(addr).await.unwrap()
}

#[tokio::test]
async fn an_address_whose_callers_stay_silent_leaves_places_to_others() {
    let authority = Authority::new();
    let server = load_server(&authority.issue(Role::Member, "c1")).only(Role::Member);
    let (incoming, addr) = listen(server).await;
    let mut seen = greet(incoming.at_most(8));
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(connect_from([127, 0, 0, 2], addr).await);
    }
    let member = load_client(&authority.issue(Role::Member, "c2"));
    // Well before the handshakes of the silent ones end.
    let let_in = timeout(SOON, is_let_in(member.connector().unwrap(), addr)).await;
    assert!(let_in.expect("no answer yet"));
    assert_eq!(seen.recv().await.unwrap().name, "c2");
    // Four of the silent connections are closed at once, and four stay open for a handshake.
    let mut open = 0;
    for stream in &mut silent {
        let read = timeout(Duration::from_millis(200), stream.read(&mut [0])).await;
        open += usize::from(read.is_err());
    }
    assert_eq!(open, 4);
    let other = load_client(&authority.issue(Role::Member, "c3"));
    drop(silent);
    let again = async {
        let tcp = connect_from([127, 0, 0, 2], addr).await;
        let name = server_name(&addr.to_string()).unwrap();
        let mut stream = other.connector().unwrap().connect(name, tcp).await?;
        stream.read_exact(&mut [0]).await.map(|_| ())
    };
    again.await.expect("the address has its handshakes again");
}

#[tokio::test]
async fn one_identity_has_no_more_connections_than_its_share() {
    let authority = Authority::new();
    let (incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    let mut incoming = incoming.at_most(8).at_most_of_one_identity(2);
    let (admitted, mut seen) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(mut conn)) = incoming.next().await {
            // Sends a byte, and keeps the connection open until the caller closes it.
            let _ = conn.write_all(b"!").await;
            let _ = admitted.send(conn.peer().identity.name.clone());
            tokio::spawn(async move { conn.read(&mut [0]).await });
        }
    });
    let call = async |tls: &ClientTls| {
        let mut stream = connect(tls.connector().unwrap(), addr).await.ok()?;
        let greeted = timeout(LIMIT, stream.read_exact(&mut [0])).await.expect("no answer");
        greeted.is_ok().then_some(stream)
    };
    let ann = load_client(&authority.issue(Role::Client, "ann"));
    let mut held =
        vec![call(&ann).await.expect("the first"), call(&ann).await.expect("the second")];
    for _ in 0..6 {
        assert!(call(&ann).await.is_none(), "a third connection of one identity");
    }
    let bob = load_client(&authority.issue(Role::Client, "bob"));
    let _bob = call(&bob).await.expect("another identity has places");
    held.pop();
    let begun = std::time::Instant::now();
    while call(&ann).await.is_none() {
        assert!(begun.elapsed() < LIMIT, "a place that was left is not given again");
    }
    let names: Vec<_> = (0..4).map(|_| seen.try_recv().unwrap()).collect();
    assert_eq!(names, ["ann", "ann", "bob", "ann"]);
}
