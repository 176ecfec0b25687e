//! The client of a kubeconfig: kube's TLS and headers, by a way that is ours.
//!
//! kube's own builder (client/builder.rs, v5.0) is not asked for the way. It forgets the user of a SOCKS proxy. It expects a proxy
//! with TLS to have the API server's `tls-server-name`. It does not know `socks5h`.

use std::time::Duration;

use hyper::Uri;
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::{ClientBuilder, ConfigExt as _, RustlsTlsError};
use kube::{Client, Config, Error};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};

use super::client_layer::ClientLayer;
use super::credentials::{CredentialOrigin, Login};
use super::proxy;
use kubelet_config::reported;

/// RFC 1928.
const SOCKS_PORT: u16 = 1080;

/// TCP connect, proxy and TLS handshake together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A watch that says nothing for this long is dead: the API server sends bookmarks, and ends it.
const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// A client with these credentials; nothing is sent. May read the system's certificate authorities.
///
/// # Errors
/// What is wrong with them, by the kubeconfig's field.
pub(super) fn client(
    login: Login,
    layer: &ClientLayer,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Client, String> {
    let Login { mut config, proxy_url, origin, .. } = login;
    let proxy = proxy::choose(proxy_url.as_deref(), &config.cluster_url, env)?;
    let is_https = |uri: &Uri| uri.scheme_str() == Some("https");
    let has_tls = is_https(&config.cluster_url) || proxy.as_ref().is_some_and(|proxy| is_https(proxy.uri()));
    if config.accept_invalid_certs || !has_tls {
        config.root_cert.get_or_insert_default(); // or kube reads the system's, which may have none
    }
    let explained = |error| explain(error, &origin);

    let mut connector = HttpConnector::new();
    connector.enforce_http(false); // or it refuses https
    let Some(proxy) = proxy else { return stack(connector, &config, layer).map_err(explained) };
    let address = proxy.uri().clone();
    if proxy::is_socks(&address) {
        let mut socks = SocksV5::new(proxy::with_port(address, SOCKS_PORT), connector);
        if let Some((user, password)) = proxy.raw_auth() {
            socks = socks.with_auth(user.to_owned(), password.to_owned());
        }
        // Its Display does not say why.
        let socks = socks.map_err(|error| BoxError::from(format!("to the SOCKS proxy: {error:?}")));
        return stack(socks, &config, layer).map_err(explained);
    }
    let mut to_proxy = config.clone();
    to_proxy.tls_server_name = None;
    let connector = to_proxy.rustls_https_connector_with_connector(connector).map_err(explained)?;
    let mut tunnel = Tunnel::new(address, connector);
    if let Some(header) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(header.clone());
    }
    stack(tunnel, &config, layer).map_err(explained)
}

/// The client on top of a way to the API server.
fn stack<C>(way: C, config: &Config, layer: &ClientLayer) -> kube::Result<Client>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(way)?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(Some(READ_TIMEOUT));
    connector.set_write_timeout(Some(READ_TIMEOUT));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build(connector));
    Ok(ClientBuilder::new(service, config.default_namespace.as_str()).with_layer(layer).build())
}

/// By the kubeconfig's field: kube says what happened, not what to look at.
fn explain(error: Error, origin: &CredentialOrigin) -> String {
    let CredentialOrigin { user, key, .. } = origin;
    match error {
        Error::RustlsTls(RustlsTlsError::MissingPrivateKey) => {
            format!("{key}: the key is of no kind that TLS takes: PKCS #8, PKCS #1 or SEC 1, not encrypted")
        }
        Error::RustlsTls(RustlsTlsError::InvalidPrivateKey(error @ rustls::Error::InconsistentKeys(_))) => format!(
            "{user}: certificate and key do not belong together; while they are being replaced that passes ({error})"
        ),
        Error::RustlsTls(RustlsTlsError::InvalidPrivateKey(error)) => {
            format!("{user}: certificate and key cannot be used: {error}")
        }
        Error::RustlsTls(RustlsTlsError::InvalidIdentityPem(error)) => format!("{user}: {error}"),
        Error::RustlsTls(RustlsTlsError::AddRootCertificate(error)) => format!(
            "it has no certificate-authority, and the system's cannot be used (SSL_CERT_FILE, /etc/ssl): {error}"
        ),
        Error::RustlsTls(RustlsTlsError::InvalidServerName(error)) => format!("tls-server-name: {error}"),
        Error::HttpError(error) => format!("its user's as fields: {}", reported::error_chain(&error)),
        other => reported::error_chain(&other),
    }
}
