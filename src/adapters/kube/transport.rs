//! The client of a kubeconfig: TLS by its certificates, through a proxy or not, and in each request's head who asks.
//!
//! kube's own builder (client/builder.rs, v5.0) would bring the credential providers of old with their JSONPath and regular
//! expressions, and an HTTP client for each kind of proxy: together a fifth of the program.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, MaybeHttpsStream};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::ConfigExt as _;
use kube::{Client, Config};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::net::TcpStream;
use tower::{BoxError, Layer as _, Service};

use super::client_layer::ClientLayer;
use super::credentials::{Login, base64};
use super::identity::NO_CERTIFICATE;
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
    let cluster = &login.cluster;
    let server = server(cluster.server.as_deref().unwrap_or_default())?;
    let proxy = proxy::choose(cluster.proxy_url.as_deref(), &server, env)?;
    let is_https = |uri: &Uri| uri.scheme_str() == Some("https");
    let tls = Arc::new(tls(&login, is_https(&server) || proxy.as_ref().is_some_and(|proxy| is_https(proxy.uri())))?);
    let route = Route::new(proxy, &tls);
    let connector = match cluster.tls_server_name.clone().filter(|name| !name.is_empty()) {
        None => HttpsConnector::from((route, tls)),
        Some(name) => {
            let name = ServerName::try_from(name).map_err(|error| format!("tls-server-name: {error}"))?;
            HttpsConnector::new(route, tls, false, Arc::new(FixedServerNameResolver::new(name)))
        }
    };
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(Some(READ_TIMEOUT));
    connector.set_write_timeout(Some(READ_TIMEOUT));

    let mut config = Config::new(server);
    config.headers.extend(authorization(&login)?.map(|value| (AUTHORIZATION, value)));
    config.auth_info = login.user;
    let headers = config
        .extra_headers_layer()
        .map_err(|error| format!("its user's as fields: {}", reported::error_chain(&error)))?;
    let client = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = layer.layer(config.base_uri_layer().layer(headers.layer(client)));
    Ok(Client::new(service, config.default_namespace))
}

/// Without a scheme it is https: client-go would take http where no `certificate-authority` is given, and keep the credentials to itself.
fn server(given: &str) -> Result<Uri, String> {
    let url = if given.contains("://") { given.to_owned() } else { format!("https://{given}") };
    let uri: Uri = url.parse().map_err(|error| format!("server is not a URL: {error}"))?; // the URL is not repeated: it may hold a password
    Ok(if uri.scheme_str() == Some("http") { with_port(uri, 80) } else { uri }) // `Tunnel` asks a proxy for 443 where none is named
}

/// With this port, where the URL names none.
fn with_port(uri: Uri, port: u16) -> Uri {
    let (Some(scheme), Some(host), None) = (uri.scheme_str(), uri.host(), uri.port()) else { return uri };
    let authority = format!("{host}:{port}");
    Uri::builder().scheme(scheme).authority(authority).path_and_query(uri.path()).build().unwrap_or(uri)
}

/// A password goes before a token, as kube has it; client-go refuses both at once.
fn authorization(login: &Login) -> Result<Option<HeaderValue>, String> {
    let text = match (&login.user.username, &login.credentials.token) {
        (Some(user), _) => {
            let password = login.password.as_deref().unwrap_or_default();
            format!("Basic {}", base64(format!("{user}:{password}").into_bytes()))
        }
        (None, Some(token)) => format!("Bearer {token}"),
        (None, None) => return Ok(None),
    };
    let mut value = HeaderValue::try_from(text).map_err(|error| format!("its user's credentials: {error}"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn tls(login: &Login, is_needed: bool) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &login.authorities {
        _ if login.cluster.insecure_skip_tls_verify.unwrap_or_default() => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate))
        }
        Some(pem) => {
            builder.with_root_certificates(roots(pem).map_err(|why| format!("{}: {why}", login.origin.authority))?)
        }
        None if is_needed => builder.with_platform_verifier().map_err(|error| {
            format!(
                "it has no certificate-authority, and the system's cannot be used (SSL_CERT_FILE, /etc/ssl): {error}"
            )
        })?,
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    let Some((certificates, key)) = &login.credentials.pair else { return Ok(builder.with_no_client_auth()) };
    let at = |why: String| format!("{}: {why}", login.origin.user);
    let certificates = CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>();
    let certificates = certificates.map_err(|error| at(error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        format!("{}: the key is of no kind that TLS takes: PKCS #8, PKCS #1 or SEC 1, not encrypted", login.origin.key)
    })?;
    builder.with_client_auth_cert(certificates, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => at(format!(
            "certificate and key do not belong together; while they are being replaced that passes ({error})"
        )),
        other => at(format!("certificate and key cannot be used: {other}")),
    })
}

/// What cannot be read is left out, as by Go's `AppendCertsFromPEM`.
fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok));
    if roots.is_empty() { Err(NO_CERTIFICATE.to_owned()) } else { Ok(roots) }
}

/// The way to the API server's port, or through a proxy.
#[derive(Clone)]
enum Route {
    Direct(HttpConnector),
    /// The proxy itself may have TLS.
    Tunnel(Tunnel<HttpsConnector<HttpConnector>>),
    Socks(SocksV5<HttpConnector>),
}

/// As it comes off a route, before the TLS of the API server.
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

impl Route {
    fn new(proxy: Option<Intercept>, tls: &Arc<ClientConfig>) -> Self {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false); // or it refuses https
        let Some(proxy) = proxy else { return Self::Direct(connector) };
        let address = proxy.uri().clone();
        if proxy::is_socks(&address) {
            let socks = SocksV5::new(with_port(address, SOCKS_PORT), connector);
            return Self::Socks(match proxy.raw_auth() {
                Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                None => socks,
            });
        }
        let tunnel = Tunnel::new(address, HttpsConnector::from((connector, Arc::clone(tls))));
        Self::Tunnel(match proxy.basic_auth() {
            Some(header) => tunnel.with_auth(header.clone()),
            None => tunnel,
        })
    }
}

impl Service<Uri> for Route {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Stream, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(connector) => Service::poll_ready(connector, context).map_err(Into::into),
            Self::Tunnel(tunnel) => tunnel.poll_ready(context).map_err(Into::into),
            Self::Socks(socks) => socks.poll_ready(context).map_err(Into::into),
        }
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        match self {
            Self::Direct(connector) => {
                let connection = Service::call(connector, server);
                Box::pin(async move { Ok(MaybeHttpsStream::Http(connection.await?)) })
            }
            Self::Tunnel(tunnel) => {
                let connection = tunnel.call(server);
                Box::pin(async move { Ok(connection.await?) })
            }
            Self::Socks(socks) => {
                let connection = socks.call(server);
                // Its Display does not say why.
                Box::pin(async move {
                    let stream = connection.await.map_err(|error| format!("to the SOCKS proxy: {error:?}"))?;
                    Ok(MaybeHttpsStream::Http(stream))
                })
            }
        }
    }
}

/// `insecure-skip-tls-verify`: whoever answers is believed.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    /// All that an API server's certificate may be signed with.
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ED25519,
            SignatureScheme::ED448,
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::ECDSA_NISTP521_SHA512,
            SignatureScheme::ECDSA_SHA1_Legacy,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PSS_SHA512,
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA512,
            SignatureScheme::RSA_PKCS1_SHA1,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_scheme_is_never_asked_in_clear_nor_at_another_port() {
        for (given, url) in [
            ("api:6443", "https://api:6443/"),
            ("10.0.0.1", "https://10.0.0.1/"),
            ("[fd00::1]:6443/path", "https://[fd00::1]:6443/path"),
            ("http://api/path", "http://api:80/path"),
            ("http://[fd00::1]:8080", "http://[fd00::1]:8080/"),
        ] {
            assert_eq!(server(given).unwrap().to_string(), url);
        }
        assert_eq!(with_port(Uri::from_static("socks5://[::1]"), 1080).to_string(), "socks5://[::1]:1080/");
        let why = server("https://u:SECRET@a b").unwrap_err();
        assert!(why.starts_with("server is not a URL: ") && !why.contains("SECRET"), "{why}");
    }
}
