//! What a local user without any right tries; the tests run it as uid 65534. It says "done" and its result in one line, and
//! goes on until its standard input ends.
#![allow(clippy::unwrap_used, clippy::panic, reason = "for tests alone")]

use std::io::Read as _;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
    let result = match words.as_slice() {
        // Binds these abstract names.
        ["take-names", names @ ..] => {
            for name in names {
                let address = SocketAddr::from_abstract_name(name).unwrap();
                held.extend(UnixDatagram::bind_addr(&address).ok().map(|socket| Box::new(socket) as Box<_>));
            }
            held.len().to_string()
        }
        // Listens at a TCP address as soon as nobody else does.
        ["take-port", address] => loop {
            if let Ok(listener) = TcpListener::bind(address) {
                held.push(Box::new(listener));
                break "taken".to_owned();
            }
        },
        ["send", name, text] => match UnixDatagram::unbound().unwrap().send_to_addr(text.as_bytes(), &address(name)) {
            Ok(_) => "sent".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        },
        // As fast as it can, for so many milliseconds: how many were taken, and how long it took.
        ["flood", name, milliseconds] => {
            let (socket, address) = (UnixDatagram::unbound().unwrap(), address(name));
            socket.set_nonblocking(true).unwrap();
            let (begun, limit) = (Instant::now(), Duration::from_millis(milliseconds.parse().unwrap()));
            let mut sent = 0_u64;
            while begun.elapsed() < limit {
                sent += u64::from(socket.send_to_addr(b"READY=1\nWATCHDOG=1", &address).is_ok());
            }
            format!("{sent} {}", begun.elapsed().as_millis())
        }
        ["signal", pid] => match kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGTERM) {
            Ok(()) => "sent".to_owned(),
            Err(error) => error.to_string(),
        },
        ["read", path] => match std::fs::read(path) {
            Ok(_) => "read".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        },
        ["write", path, text] => match std::fs::write(path, text) {
            Ok(()) => "written".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        },
        other => panic!("a stranger does not know how to {other:?}"),
    };
    println!("done {result}");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn address(name: &str) -> SocketAddr {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).unwrap(),
        None => SocketAddr::from_pathname(name).unwrap(),
    }
}
