//! How many connections it costs to find the leader.

use tokio::net::{TcpListener, TcpStream};

use super::failing_members::{LEFT_LIMIT, settled};
use super::*;

/// The longest wait of one of thousands of clients.
const LONG_WAIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn one_of_thousands_that_come_back_connects_to_the_member_that_led_last_alone() {
    let (c1, c2, c3) = (Fake::start("c1"), Fake::start("c2"), Fake::start("c3"));
    let client = settled(&[&c1, &c2, &c3], &c1).await;
    let before = [&c1, &c2, &c3].map(Fake::connections);
    client.wait_at_most(LONG_WAIT);
    client.disconnect();
    client.leader_failed(&c1.addr.to_string());
    create(&client, CallOptions::default()).await.unwrap();
    let made = [&c1, &c2, &c3].map(Fake::connections);
    assert_eq!(made, [before[0] + 1, before[1], before[2]]);
}

#[tokio::test]
async fn the_leader_that_a_follower_names_is_asked_next_and_no_other() {
    let (c1, c2, c3) = (Fake::start("c1"), Fake::start("c2"), Fake::start("c3"));
    introduce(&[&c1, &c2, &c3]);
    c3.leads(2);
    c1.set(|says| says.members.as_mut().unwrap().leader = "c3".into());
    let client = client(&[&c1]);
    client.wait_at_most(LONG_WAIT);
    create(&client, CallOptions::default()).await.unwrap();
    assert_eq!([&c1, &c2, &c3].map(Fake::connections), [1, 0, 1]);
}

#[tokio::test]
async fn all_members_are_asked_once_the_likely_leader_does_not_lead() {
    let (c1, c2, c3) = (Fake::start("c1"), Fake::start("c2"), Fake::start("c3"));
    let client = settled(&[&c1, &c2, &c3], &c1).await;
    client.wait_at_most(LONG_WAIT);
    c1.set(|says| says.leads = false);
    c3.leads(2);
    client.leader_failed(&c1.addr.to_string());
    let started = Instant::now();
    create(&client, CallOptions::default()).await.unwrap();
    assert_eq!(client.leader().unwrap().name, "c3");
    assert!(started.elapsed() < LEFT_LIMIT, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_member_with_a_standby_connection_is_asked_at_once() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    let client = settled(&[&c1, &c2], &c1).await;
    let keeping = client.clone();
    let standby = tokio::spawn(async move { keeping.keep_standby_connections().await });
    let opened = async {
        while c2.connections() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), opened).await.unwrap();
    standby.abort();
    client.wait_at_most(LONG_WAIT);
    c1.set(|says| says.hangs = true);
    c2.leads(2);
    client.leader_failed(&c1.addr.to_string());
    let started = Instant::now();
    create(&client, CallOptions::default()).await.unwrap();
    assert!(started.elapsed() < LEFT_LIMIT, "{:?}", started.elapsed());
    assert_eq!(c2.connections(), 1);
}

/// An address whose connections reach `to` after this delay, and the number of those connections.
async fn slow_way(to: std::net::SocketAddr, late: Duration) -> (String, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let accepted = Arc::new(Mutex::new(0));
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            *count.lock() += 1;
            tokio::spawn(async move {
                tokio::time::sleep(late).await;
                let mut to = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    });
    (addr, accepted)
}

#[tokio::test]
async fn an_overloaded_member_that_answers_late_is_waited_for_and_not_asked_anew() {
    let c1 = Fake::start("c1");
    c1.leads(1);
    let (addr, accepted) = slow_way(c1.addr, Duration::from_secs(4)).await;
    let client = Client::new(ClientConfig::new(vec![addr], Security::InsecurePlaintext)).unwrap();
    let options = CallOptions::default().timeout(Duration::from_secs(30));
    assert_eq!(create(&client, options).await.unwrap(), 5);
    assert_eq!(*accepted.lock(), 1);
}
