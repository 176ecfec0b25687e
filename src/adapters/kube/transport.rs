//! The client of a kubeconfig: TLS by its certificates, through a proxy or not, and in each request's head who asks.
//!
//! kube's own builder (client/builder.rs, v5.0) would bring the credential providers of old with their JSONPath and regular
//! expressions, and an HTTP client for each kind of proxy: together a tenth of the program.

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
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::net::TcpStream;
use tower::{BoxError, Layer as _, Service};

use super::client_layer::ClientLayer;
use super::credentials::{Login, base64, chain};
use super::{proxy, watch};

/// To a connection, with the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
    let server = server(&login)?;
    let proxy = proxy::choose(cluster.proxy_url.as_deref(), &server, env)?;
    let tls = Arc::new(tls(&login)?);
    let route = Route::new(proxy, &tls)?;
    let connector = match cluster.tls_server_name.clone().filter(|name| !name.is_empty()) {
        None => HttpsConnector::from((route, tls)),
        Some(name) => {
            let name = ServerName::try_from(name).map_err(|error| format!("tls-server-name: {error}"))?;
            HttpsConnector::new(route, tls, false, Arc::new(FixedServerNameResolver::new(name)))
        }
    };
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(Some(watch::READ_TIMEOUT));
    connector.set_write_timeout(Some(watch::READ_TIMEOUT));

    let mut config = Config::new(server);
    config.headers.extend(authorization(&login)?.map(|value| (AUTHORIZATION, value)));
    config.auth_info = login.user;
    let headers = config.extra_headers_layer().map_err(|error| chain(&error))?;
    let client = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = layer.layer(config.base_uri_layer().layer(headers.layer(client)));
    Ok(Client::new(service, config.default_namespace))
}

/// Without a scheme it is https if anything of TLS is given (`DefaultServerURL`, client-go rest/url_utils.go, v1.20.2).
fn server(login: &Login) -> Result<Uri, String> {
    let mut url = login.origin.server.clone();
    if !url.contains("://") {
        let insecure = login.cluster.insecure_skip_tls_verify.unwrap_or_default();
        let tls = insecure || login.authorities.is_some() || login.credentials.pair.is_some();
        url = format!("{}://{url}", if tls { "https" } else { "http" });
    }
    url.parse().map_err(|error| format!("server {:?} is not a URL: {error}", login.origin.server))
}

/// A password goes before a token, as kube has it; client-go refuses both at once.
fn authorization(login: &Login) -> Result<Option<HeaderValue>, String> {
    let text = match (&login.user.username, &login.password, &login.credentials.token) {
        (Some(user), Some(password), _) => {
            format!("Basic {}", base64(format!("{user}:{password}").into_bytes()))
        }
        (_, _, Some(token)) => format!("Bearer {token}"),
        _ => return Ok(None),
    };
    let mut value =
        HeaderValue::try_from(text).map_err(|_| "its user's token cannot be sent in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn tls(login: &Login) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &login.authorities {
        _ if login.cluster.insecure_skip_tls_verify.unwrap_or_default() => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        }
        Some(pem) => {
            builder.with_root_certificates(roots(pem).map_err(|why| format!("{}: {why}", login.origin.authority))?)
        }
        // Those of the system, as for client-go.
        None => builder.with_platform_verifier().map_err(|error| error.to_string())?,
    };
    match &login.credentials.pair {
        None => Ok(builder.with_no_client_auth()),
        Some((certificates, key)) => {
            let at = |error: rustls_pki_types::pem::Error| format!("{}: {error}", login.origin.user);
            let certificates = CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>().map_err(at)?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(at)?;
            builder.with_client_auth_cert(certificates, key).map_err(unusable_pair)
        }
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

fn unusable_pair(error: rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => format!(
            "client-certificate and client-key do not belong together; while they are being replaced that passes ({error})"
        ),
        other => format!("client-certificate and client-key cannot be used: {other}"),
    }
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
    fn new(proxy: Option<Intercept>, tls: &Arc<ClientConfig>) -> Result<Self, String> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false); // or it refuses https
        let Some(proxy) = proxy else { return Ok(Self::Direct(connector)) };
        let address = proxy.uri().clone();
        match address.scheme_str() {
            Some("http" | "https") => {
                let tunnel = Tunnel::new(address, HttpsConnector::from((connector, Arc::clone(tls))));
                Ok(Self::Tunnel(match proxy.basic_auth() {
                    Some(header) => tunnel.with_auth(header.clone()),
                    None => tunnel,
                }))
            }
            Some("socks5" | "socks5h") => {
                let socks = SocksV5::new(address, connector);
                Ok(Self::Socks(match proxy.raw_auth() {
                    Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
                    None => socks,
                }))
            }
            _ => Err(proxy::UNUSABLE.to_owned()),
        }
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
                Box::pin(async move { Ok(MaybeHttpsStream::Http(connection.await?)) })
            }
        }
    }
}

/// `insecure-skip-tls-verify`: whoever answers is believed.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

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

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
