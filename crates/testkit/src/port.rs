//! Ports that stay ours while nobody listens on them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::net::TcpSocket;

/// A port of 127.0.0.1 that tests running beside this one do not get. It is bound and not listened on: connections
/// to it are refused, while a listener (all of Rust's set SO_REUSEADDR) can still take it.
pub struct Port {
    address: SocketAddr,
    _held: TcpSocket,
}

impl Port {
    /// Any free one, below those that the kernel hands out: an outgoing connection could take one of these.
    pub fn free() -> Port {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let start = u16::try_from(std::process::id() % 11_000).expect("a small number");
        loop {
            let number = 21_000 + (start + NEXT.fetch_add(1, Ordering::SeqCst) % 11_000) % 11_000;
            let socket = TcpSocket::new_v4().expect("a socket");
            // Without SO_REUSEADDR at first: it must not be anyone's, not even held like this one.
            if socket.bind(SocketAddr::from(([127, 0, 0, 1], number))).is_ok() {
                socket.set_reuseaddr(true).expect("SO_REUSEADDR");
                return Port { address: socket.local_addr().expect("local_addr"), _held: socket };
            }
        }
    }

    /// This one. 0: any free one.
    pub fn hold(port: u16) -> Port {
        if port == 0 {
            return Port::free();
        }
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("SO_REUSEADDR");
        socket.bind(SocketAddr::from(([127, 0, 0, 1], port))).expect("bind a port");
        Port { address: socket.local_addr().expect("local_addr"), _held: socket }
    }

    pub fn number(&self) -> u16 {
        self.address.port()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
