//! What arrives: through proxies of each kind, and in the head of a request.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};

use testkit::api_server::tls::Authority;

use super::files::CredentialDir;

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Takes one connection, heeds the handshake of a proxy, and then answers one request as an API server does; gives what it heard.
fn listen(tls: Option<Arc<ServerConfig>>, handshake: fn(&mut dyn Stream) -> String) -> (u16, JoinHandle<[String; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = spawn_blocking(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut stream: Box<dyn Stream> = match tls {
            Some(config) => Box::new(StreamOwned::new(ServerConnection::new(config).unwrap(), stream)),
            None => Box::new(stream),
        };
        let shaken = handshake(&mut *stream);
        let request = head(&mut *stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").unwrap();
        stream.flush().unwrap();
        [shaken, request]
    });
    (port, heard)
}

fn head(stream: &mut dyn Stream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(bytes::<1>(stream)[0]);
    }
    String::from_utf8(text).unwrap().to_lowercase()
}

fn bytes<const N: usize>(stream: &mut dyn Stream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn none(_: &mut dyn Stream) -> String {
    String::new()
}

fn connect(stream: &mut dyn Stream) -> String {
    let request = head(stream);
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    stream.flush().unwrap();
    request
}

/// RFC 1928 with the user and password of RFC 1929.
fn socks(stream: &mut dyn Stream) -> String {
    let [version, methods] = bytes(stream);
    let mut offered = vec![0; methods.into()];
    stream.read_exact(&mut offered).unwrap();
    assert!(version == 5 && offered.contains(&2), "{offered:?}");
    stream.write_all(&[5, 2]).unwrap();
    let mut text = |length: u8| {
        let mut text = vec![0; length.into()];
        stream.read_exact(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    let (_, length) = (text(1), text(1));
    let user = text(length.as_bytes()[0]);
    let length = text(1);
    let password = text(length.as_bytes()[0]);
    stream.write_all(&[1, 0]).unwrap();
    let [_, _, _, kind, length] = bytes(stream);
    assert_eq!(kind, 3, "a name, which the proxy looks up");
    let mut host = vec![0; length.into()];
    stream.read_exact(&mut host).unwrap();
    let port = u16::from_be_bytes(bytes(stream));
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    format!("{user}:{password}@{}:{port}", String::from_utf8(host).unwrap())
}

/// Asks once with this kubeconfig.
async fn ask(credentials: &CredentialDir, cluster: Value, user: Value) {
    credentials.kubeconfig(&cluster, &user);
    let client = credentials.connect().await.unwrap_or_else(|why| panic!("{cluster}: {why}")).client;
    client.request_text(http_get("/version")).await.unwrap_or_else(|error| panic!("{cluster}: {error:?}"));
}

fn http_get(path: &str) -> hyper::Request<Vec<u8>> {
    hyper::Request::get(path).body(Vec::new()).unwrap()
}

#[tokio::test]
async fn every_kind_of_proxy_with_its_user() {
    let credentials = CredentialDir::new();
    let authority = Authority::new("ca");
    credentials.write("ca.crt", &authority.pem);
    let tls = || Some(authority.server(&["127.0.0.1"], &authority));
    for (scheme, tls) in [("http", None), ("https", tls()), ("", None)] {
        let (port, heard) = listen(tls, connect);
        let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
        let url = format!("{scheme}us:p%40ss@127.0.0.1:{port}");
        let cluster = json!({"server": "http://api.invalid:8080", "proxy-url": url, "certificate-authority": "ca.crt"});
        ask(&credentials, cluster, json!({"token": "t"})).await;
        let [handshake, request] = heard.await.unwrap();
        assert!(handshake.starts_with("connect api.invalid:8080 "), "{handshake}");
        // us:p@ss
        assert!(handshake.contains("proxy-authorization: basic dxm6cebzcw==\r\n"), "{handshake}");
        assert!(request.starts_with("get /version ") && request.contains("authorization: bearer t\r\n"), "{request}");
    }
    let (port, heard) = listen(None, socks);
    let url = format!("socks5://us:p%40ss@127.0.0.1:{port}");
    ask(&credentials, json!({"server": "http://api.invalid:8080", "proxy-url": url}), json!({"token": "t"})).await;
    let [handshake, request] = heard.await.unwrap();
    assert_eq!(handshake, "us:p@ss@api.invalid:8080");
    assert!(request.starts_with("get /version ") && request.contains("host: api.invalid:8080\r\n"), "{request}");
}

#[tokio::test]
async fn path_user_and_whom_to_act_as() {
    let credentials = CredentialDir::new();
    let user = json!({"username": "us", "password": "p@ss", "as": "system:node:x", "as-groups": ["system:nodes"]});
    for (scheme, path, user, lines) in [
        ("http://", "/clusters/c", json!({}), &["get /clusters/c/version "][..]),
        ("http://", "", json!({"token": "t"}), &["get /version ", "authorization: bearer t\r\n"]),
        // Without anything of TLS, as for client-go.
        ("", "", json!({"token": "t"}), &["get /version ", "authorization: bearer t\r\n"]),
        (
            "http://",
            "/",
            user,
            &[
                "get /version ",
                "authorization: basic dxm6cebzcw==\r\n",
                "impersonate-user: system:node:x\r\n",
                "impersonate-group: system:nodes\r\n",
            ],
        ),
    ] {
        let (port, heard) = listen(None, none);
        ask(&credentials, json!({"server": format!("{scheme}127.0.0.1:{port}{path}")}), user.clone()).await;
        let [_, request] = heard.await.unwrap();
        for line in lines {
            assert!(request.contains(line), "{line}: {request}");
        }
        assert_eq!(request.contains("authorization"), user != json!({}), "{request}");
    }
}
