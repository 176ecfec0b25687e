//! Ports that stay ours while nobody listens on them.

use std::net::SocketAddr;

use tokio::net::TcpSocket;

/// A port of 127.0.0.1 that tests running beside this one do not get. It is bound and not listened on: connections
/// to it are refused, while a listener (all of Rust's set SO_REUSEADDR) can still take it.
pub struct Port {
    address: SocketAddr,
    _held: TcpSocket,
}

impl Port {
    /// Any free one.
    pub fn free() -> Port {
        Port::hold(0)
    }

    /// This one. 0: any free one.
    pub fn hold(port: u16) -> Port {
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
