//! What the controller shows to scrapers and probes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use testkit::api_server::{Fault, FaultKind, Verb};
use testkit::pools::World;
use testkit::port::Port;

use super::{POOL, completed};

async fn get(address: SocketAddr, path: &'static str) -> (u16, String) {
    let talk = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let answer = talk.await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test(start_paused = true)]
async fn leader_and_standby_are_ready_and_the_leader_shows_the_pools() {
    let world = World::new(5);
    let ports = [Port::free(), Port::free()];
    let [leader, standby] = [ports[0].address(), ports[1].address()];
    let script = async {
        completed(&world, 60).await;
        let (code, text) = get(leader, "/metrics").await;
        assert_eq!(code, 200);
        for line in [
            "kubelet_config_controller_leader 1",
            "kubelet_config_pool_nodes{pool=\"workers\"} 5",
            "kubelet_config_pool_condition{pool=\"workers\",condition=\"Ready\",reason=\"Complete\"} 1",
            "kubelet_config_controller_reconciliations_total{result=\"error\"} 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert_eq!(get(leader, "/readyz").await, (200, "holds the Lease\n".to_owned()));
        assert_eq!(get(standby, "/readyz").await, (200, "waits for the Lease\n".to_owned()));
        let (_, text) = get(standby, "/metrics").await;
        assert!(text.contains("kubelet_config_controller_leader 0\n") && !text.contains("workers"), "{text}");
        world.server.faults().push(Fault::new(Verb::Any, "/leases", FaultKind::Hang));
        tokio::time::sleep(Duration::from_secs(60)).await;
        for address in [leader, standby] {
            assert_eq!((get(address, "/healthz").await.0, get(address, "/readyz").await.0), (200, 503));
        }
        let (_, text) = get(leader, "/metrics").await;
        assert!(text.contains("kubelet_config_controller_leader 0\n") && !text.contains("workers"), "{text}");
    };
    let (one, other) = (leader.to_string(), standby.to_string());
    let options = ["--metrics-bind-address", &one];
    let first = world.controller_with(&options);
    let second = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.controller_with(&["--metrics-bind-address", &other]).await
    };
    tokio::select! {
        biased;
        () = script => {}
        result = first => panic!("the controller ended: {result:?}"),
        result = second => panic!("the controller ended: {result:?}"),
        () = tokio::time::sleep(Duration::from_secs(86_400)) => panic!("no end: {:#?}", world.server.pool(POOL)),
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_cannot_be_had_is_said() {
    let world = World::new(1);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    for (address, code, why) in
        [("somewhere", 2, "is not ADDRESS:PORT"), (&taken.1, 1, "choose another, or leave it out")]
    {
        let failure = world.controller_with(&["--metrics-bind-address", address]).await.unwrap_err();
        let text = &failure.message;
        assert!(failure.code == code && text.starts_with("--metrics-bind-address: ") && text.contains(why), "{text}");
    }
}
