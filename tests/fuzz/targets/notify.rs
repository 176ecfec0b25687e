//! Datagrams to the kubelet's notify socket: each costs as many inputs as it has lines that are known, and the next one is heard.

use std::cell::OnceCell;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use kubelet_supervisor::adapters::notify_socket::NotifySocket;
use kubelet_supervisor::adapters::process::ChildPid;
use kubelet_supervisor::machine::Input;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// What is read of a datagram.
const READ: usize = 4096;

struct Listener {
    runtime: Runtime,
    sender: UnixDatagram,
    address: SocketAddr,
    queue: std::cell::RefCell<UnboundedReceiver<Input>>,
}

impl Listener {
    fn new() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let socket = runtime.block_on(async { NotifySocket::bind() })?;
        let address = match socket.name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&socket.name)?,
        };
        let (inputs, queue) = unbounded_channel();
        let kubelet = ChildPid::default();
        kubelet.set(i32::try_from(std::process::id()).unwrap_or_default());
        runtime.spawn(socket.listen(kubelet, inputs));
        Ok(Self { runtime, sender: UnixDatagram::unbound()?, address, queue: queue.into() })
    }

    fn hear(&self, data: &[u8]) -> std::io::Result<Vec<Input>> {
        self.sender.send_to_addr(data, &self.address)?;
        self.sender.send_to_addr(b"STATUS=the end\nREADY=1", &self.address)?;
        let (mut heard, mut queue) = (Vec::new(), self.queue.borrow_mut());
        let expected = expected(data);
        while heard.len() <= expected.len() {
            heard.extend(self.runtime.block_on(queue.recv()));
        }
        Ok(heard)
    }
}

fn expected(data: &[u8]) -> Vec<Input> {
    let read = data.get(..READ.min(data.len())).unwrap_or_default();
    let known = read.split_inclusive(|byte| *byte == b'\n').filter_map(|line| match line {
        b"READY=1" | b"READY=1\n" | b"READY=1\r\n" => Some(Input::Ready),
        b"WATCHDOG=1" | b"WATCHDOG=1\n" | b"WATCHDOG=1\r\n" => Some(Input::Watchdog),
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
        assert!(expected.len() <= READ / 8, "one datagram costs {} inputs", expected.len());
        expected.push(Input::Ready);
        assert_eq!(heard, expected);
    });
}
