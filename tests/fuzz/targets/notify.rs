//! Datagrams to the kubelet's notify socket: each costs as many inputs as it has lines that are known, and the next one is heard.

use std::cell::OnceCell;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use kubelet_supervisor::os::notify_socket::{BURST, Message, NotifySocket};

/// What is read of a datagram.
const READ: usize = 4096;

struct Listener {
    socket: NotifySocket,
    sender: UnixDatagram,
    address: SocketAddr,
}

impl Listener {
    fn new() -> std::io::Result<Self> {
        let socket = NotifySocket::bind()?;
        let address = match socket.name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&socket.name)?,
        };
        Ok(Self { socket, sender: UnixDatagram::unbound()?, address })
    }

    fn hear(&self, data: &[u8]) -> std::io::Result<Vec<Message>> {
        self.sender.send_to_addr(data, &self.address)?;
        self.sender.send_to_addr(b"STATUS=the end\nREADY=1", &self.address)?;
        Ok(self.socket.hear(i32::try_from(std::process::id()).ok(), false, BURST)?.0)
    }
}

fn expected(data: &[u8]) -> Vec<Message> {
    let read = data.get(..READ.min(data.len())).unwrap_or_default();
    let known = read.split_inclusive(|byte| *byte == b'\n').filter_map(|line| match line {
        b"READY=1" | b"READY=1\n" | b"READY=1\r\n" => Some(Message::Ready),
        b"WATCHDOG=1" | b"WATCHDOG=1\n" | b"WATCHDOG=1\r\n" => Some(Message::Ping),
        _ => None,
    });
    known.collect()
}

pub(crate) fn check(data: &[u8]) {
    thread_local! {
        static LISTENER: OnceCell<Listener> = const { OnceCell::new() };
    }
    LISTENER.with(|listener| {
        let listener = listener.get_or_init(|| Listener::new().unwrap_or_else(|error| panic!("a socket: {error}")));
        let heard = listener.hear(data).unwrap_or_else(|error| panic!("a datagram: {error}"));
        let mut expected = expected(data);
        assert!(expected.len() <= READ / 8, "one datagram costs {} messages", expected.len());
        expected.push(Message::Ready);
        assert_eq!(heard, expected);
    });
}
