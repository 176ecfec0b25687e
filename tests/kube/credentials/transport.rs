//! What arrives: through proxies of each kind, and in the head of a request.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use testkit::api_server::tls::{Authority, peer};

use super::files::CredentialDir;

const SOON: Duration = Duration::from_secs(30);

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// What was heard: a proxy's handshake, the serial number of the client's certificate, a request's head.
struct Heard {
    handshake: String,
    certificate: String,
    request: String,
}

/// Takes one connection, with this TLS heeds the handshake of a proxy, and then answers one request as an API server does, with
/// that TLS.
async fn listen(
    proxy: Option<Arc<ServerConfig>>,
    handshake: fn(&mut dyn Stream) -> String,
    server: Option<Arc<ServerConfig>>,
) -> (u16, JoinHandle<Heard>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = tokio::spawn(async move {
        let (stream, _) = timeout(SOON, listener.accept()).await.expect("a connection in time").unwrap();
        let stream = stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        spawn_blocking(move || serve(Box::new(stream), proxy, handshake, server)).await.unwrap()
    });
    (port, heard)
}

fn serve(
    mut stream: Box<dyn Stream>,
    proxy: Option<Arc<ServerConfig>>,
    handshake: fn(&mut dyn Stream) -> String,
    server: Option<Arc<ServerConfig>>,
) -> Heard {
    let tls = |config, stream| StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    if let Some(config) = proxy {
        stream = Box::new(tls(config, stream));
    }
    let handshake = handshake(&mut *stream);
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    let (request, certificate) = match server {
        None => {
            let request = head(&mut *stream);
            stream.write_all(answer).unwrap();
            (request, String::new())
        }
        Some(config) => {
            let mut stream = tls(config, stream);
            let request = head(&mut stream);
            stream.write_all(answer).unwrap();
            stream.flush().unwrap();
            (request, peer(&stream.conn))
        }
    };
    Heard { handshake, certificate, request }
}

/// The names of headers in lower case.
fn head(stream: &mut dyn Stream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(bytes::<1>(stream)[0]);
    }
    let text = String::from_utf8(text).unwrap();
    let line = |line: &str| match line.split_once(':') {
        Some((name, value)) => format!("{}:{value}\n", name.to_lowercase()),
        None => format!("{line}\n"),
    };
    let (first, headers) = text.split_once("\r\n").unwrap();
    format!("{first}\n{}", headers.lines().map(line).collect::<String>())
}

fn bytes<const N: usize>(stream: &mut dyn Stream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn text(stream: &mut dyn Stream, length: u8) -> String {
    let mut text = vec![0; length.into()];
    stream.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
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

/// RFC 1928, with the user and password of RFC 1929 where they are offered.
fn socks(stream: &mut dyn Stream) -> String {
    let [version, methods] = bytes(stream);
    assert_eq!(version, 5);
    let mut offered = vec![0; methods.into()];
    stream.read_exact(&mut offered).unwrap();
    let mut user = String::new();
    if offered.contains(&2) {
        stream.write_all(&[5, 2]).unwrap();
        let [_, length] = bytes(stream);
        user = text(stream, length);
        let [length] = bytes(stream);
        user = format!("{user}:{}@", text(stream, length));
        stream.write_all(&[1, 0]).unwrap();
    } else {
        stream.write_all(&[5, 0]).unwrap();
    }
    let [_, _, _, kind, length] = bytes(stream);
    assert_eq!(kind, 3, "a name, which the proxy looks up");
    let host = text(stream, length);
    let port = u16::from_be_bytes(bytes(stream));
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    format!("{user}{host}:{port}")
}

/// Asks once with this kubeconfig.
async fn ask(credentials: &CredentialDir, cluster: &Value, user: &Value) {
    credentials.kubeconfig(cluster, user);
    let client = credentials.connect().await.unwrap_or_else(|why| panic!("{cluster}: {why}")).client;
    let request = hyper::Request::get("/version").body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap_or_else(|error| panic!("{cluster}: {error:?}"));
}

/// TLS to the API server is the same through each, with a certificate for another name than the URL's and for the client's.
#[tokio::test]
async fn every_kind_of_proxy_with_its_user_and_without() {
    let credentials = CredentialDir::new();
    let authority = Authority::new("ca");
    let pair = authority.node("n1", 7, 2100);
    credentials.write("ca.crt", &authority.pem);
    credentials.write("current.pem", format!("{}{}", pair.certificate, pair.key));
    let user = json!({"client-certificate": "current.pem", "client-key": "current.pem"});
    let socks_proxy: fn(&mut dyn Stream) -> String = socks;
    for (scheme, name, handshake, said) in [
        (
            "http://",
            "us:p%40ss@",
            connect as fn(&mut dyn Stream) -> String,
            "\nproxy-authorization: Basic dXM6cEBzcw==\n",
        ),
        ("https://", "us:p%40ss@", connect, "\nproxy-authorization: Basic dXM6cEBzcw==\n"),
        ("", "", connect, "CONNECT api.invalid:6443 HTTP/1.1\n"),
        ("socks5://", "us:p%40ss@", socks_proxy, "us:p@ss@api.invalid:6443"),
        ("socks5h://", "", socks_proxy, "api.invalid:6443"),
    ] {
        let tls = (scheme == "https://").then(|| authority.server(&["127.0.0.1"], &authority));
        let server = authority.server(&["kubernetes"], &authority);
        let (port, heard) = listen(tls, handshake, Some(server)).await;
        let cluster = json!({"server": "https://api.invalid:6443", "certificate-authority": "ca.crt",
            "tls-server-name": "kubernetes", "proxy-url": format!("{scheme}{name}127.0.0.1:{port}")});
        ask(&credentials, &cluster, &user).await;
        let Heard { handshake, certificate, request } = heard.await.unwrap();
        assert!(handshake.contains(said), "{scheme}: {handshake}");
        assert_eq!(handshake.contains("authorization"), handshake.contains("Basic"), "{handshake}");
        assert!(request.starts_with("GET /version ") && certificate == "07", "{scheme}: {certificate} {request}");
    }
}

#[tokio::test]
async fn path_user_and_whom_to_act_as() {
    let credentials = CredentialDir::new();
    let acting = json!({"username": "us", "password": "p@ss", "token": "t", "as": "system:node:x", "as-uid": "u",
        "as-groups": ["g", "h"], "as-user-extra": {"k": ["v"]}});
    for (path, user, lines) in [
        ("/clusters/c", json!({}), &["GET /clusters/c/version "][..]),
        ("", json!({"token": "t", "username": "", "as": ""}), &["GET /version ", "\nauthorization: Bearer t\n"]),
        ("", json!({"username": "us"}), &["\nauthorization: Basic dXM6\n"]),
        (
            "/",
            acting,
            &[
                "GET /version ",
                "\nauthorization: Basic dXM6cEBzcw==\n",
                "\nimpersonate-user: system:node:x\n",
                "\nimpersonate-uid: u\n",
                "\nimpersonate-group: g\n",
                "\nimpersonate-group: h\n",
                "\nimpersonate-extra-k: v\n",
            ],
        ),
    ] {
        let (port, heard) = listen(None, none, None).await;
        ask(&credentials, &json!({"server": format!("http://127.0.0.1:{port}{path}")}), &user).await;
        let Heard { request, .. } = heard.await.unwrap();
        for line in lines {
            assert!(request.contains(line), "{line}: {request}");
        }
        assert_eq!(request.contains("authorization"), user != json!({}), "{request}");
        assert_eq!(request.contains("impersonate"), user["as-uid"].is_string(), "{request}");
    }
}

/// As Go reads them: what cannot be read is left out.
#[tokio::test]
async fn a_damaged_bundle_is_good_for_what_can_be_read() {
    let credentials = CredentialDir::new();
    let authority = Authority::new("ca");
    let pem = &authority.pem;
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let half = pem.get(..pem.len() / 2).unwrap();
    for bundle in [format!("{pem}{half}"), format!("{half}\n{pem}"), format!("{garbage}{pem}")] {
        credentials.write("ca.crt", &bundle);
        let (port, heard) = listen(None, none, Some(authority.server(&["127.0.0.1"], &authority))).await;
        // Without a scheme.
        let cluster = json!({"server": format!("127.0.0.1:{port}"), "certificate-authority": "ca.crt"});
        ask(&credentials, &cluster, &json!({"token": "t"})).await;
        assert!(heard.await.unwrap().request.contains("Bearer t"), "{bundle}");
    }
    credentials.write("ca.crt", garbage);
    credentials.kubeconfig(&json!({"certificate-authority": "ca.crt"}), &json!({"token": "t"}));
    let why = credentials.connect().await.err().expect("a refusal");
    assert!(why.ends_with("/ca.crt: there is no PEM certificate in it"), "{why}");
}
