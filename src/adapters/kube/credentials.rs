//! The kubelet's own credentials: its `--kubeconfig` and the files that names, read at one moment.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use hyper::Uri;
use k8s_openapi::ByteString;
use kube::Config;
use kube::config::{AuthInfo, Cluster, ExecConfig, Kubeconfig, KubeconfigError};
use kubelet_config::yaml;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::exec_credential::Credentials;
use super::identity::{self, Identity, NO_CERTIFICATE};
use super::proxy;
use crate::adapters::fsx::FileId;

/// A hash of all that a client is made of.
pub type Fingerprint = [u8; 32];

/// Kubeconfigs and certificates have some kilobytes, CA bundles at times a few hundred.
const MAX_BYTES: u64 = 4 << 20;

/// What a kubeconfig can name, by field.
const AUTHORITY: &str = "certificate-authority";
const CERTIFICATE: &str = "client-certificate";
const KEY: &str = "client-key";
const TOKEN: &str = "tokenFile";

/// The kubeconfig and what it names, as found.
pub struct CredentialFiles {
    path: PathBuf,
    text: Result<Vec<u8>, String>,
    /// Of the current context.
    current: Result<(Cluster, AuthInfo), String>,
    /// Field, file, content.
    files: BTreeMap<&'static str, (PathBuf, Result<Vec<u8>, String>)>,
    /// Tells one credential plugin's binary from another.
    plugin: Option<FileId>,
}

/// What a client is made of: nothing in it names a file any more.
pub struct Login {
    /// Server, authorities, user: our bytes in kube's fields, which would else be read again, at other moments.
    pub(super) config: Config,
    /// Of the kubeconfig: kube would hold `NO_PROXY` against it.
    pub(super) proxy_url: Option<String>,
    /// To be run for the user's credentials.
    pub exec: Option<ExecConfig>,
    /// The client certificate, if it is known before a plugin is run.
    pub(super) identity: Identity,
    /// Where all that came from.
    pub origin: CredentialOrigin,
}

/// Where credentials came from, for messages.
#[derive(Clone, Debug, Default)]
pub struct CredentialOrigin {
    /// The kubeconfig.
    pub kubeconfig: String,
    /// `server`.
    pub server: String,
    /// As in `certificate-authority /etc/kubernetes/pki/ca.crt`; empty if the system's are used.
    pub authority: String,
    /// As in `client-certificate /var/lib/kubelet/pki/kubelet-client-current.pem`, or the token's.
    pub user: String,
    /// As in `client-key /var/lib/kubelet/pki/kubelet-client-current.pem`.
    pub key: String,
}

impl CredentialFiles {
    /// Reads the files. Cheap: five small ones at the most, and no request leaves the node.
    #[must_use]
    pub fn load(path: &Path) -> Self {
        let text = read(path);
        let current = text.as_ref().map_err(Clone::clone).and_then(|text| current(parse(text)?));
        let mut files =
            Self { path: path.to_owned(), text, current: Err(String::new()), files: BTreeMap::new(), plugin: None };
        files.current = current.map(|(cluster, mut user)| {
            files.read_named_files(&cluster, &mut user);
            (cluster, user)
        });
        files
    }

    fn read_named_files(&mut self, cluster: &Cluster, user: &mut AuthInfo) {
        // Relative to the kubeconfig's directory (ResolveLocalPaths, client-go tools/clientcmd/loader.go, v1.20.2).
        let dir = self.path.parent().unwrap_or(Path::new("/")).to_owned();
        let mut named = |field, file: &Option<String>, data: bool| {
            if let Some(file) = file.as_ref().filter(|file| !file.is_empty() && !data) {
                let file = dir.join(file);
                let content = read(&file);
                self.files.insert(field, (file, content));
            }
        };
        named(AUTHORITY, &cluster.certificate_authority, cluster.certificate_authority_data.is_some());
        named(CERTIFICATE, &user.client_certificate, user.client_certificate_data.is_some());
        named(KEY, &user.client_key, user.client_key_data.is_some());
        named(TOKEN, &user.token_file, false);
        if let Some(command) = user.exec.as_mut().and_then(|exec| exec.command.as_mut())
            && command.contains('/')
        {
            let program = dir.join(&*command);
            *command = program.display().to_string();
            self.plugin = FileId::of(&program);
        }
    }

    /// Changes when any of it changes, links followed.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hash = Sha256::new();
        let mut add = |content: &Result<Vec<u8>, String>| {
            let content = content.as_ref().map_or_else(|why| ("absent", why.as_bytes()), |bytes| ("there", bytes));
            hash.update(format!("{} {} ", content.0, content.1.len()));
            hash.update(content.1);
        };
        add(&self.text);
        for (_, content) in self.files.values() {
            add(content);
        }
        hash.update(self.plugin.map_or_else(String::new, |plugin| plugin.to_string()));
        hash.finalize().into()
    }

    /// What a client is to be made of.
    ///
    /// # Errors
    /// What is wrong, with kubeconfig, field and file.
    pub fn login(self) -> Result<Login, String> {
        let kubeconfig = self.path.display().to_string();
        self.resolve(&kubeconfig).map_err(|why| format!("{kubeconfig}: {why}"))
    }

    fn resolve(mut self, kubeconfig: &str) -> Result<Login, String> {
        let (mut cluster, mut user) = self.current.clone()?;
        let server = cluster.server.as_deref().ok_or("there is no server in its cluster")?;
        let mut config = Config::new(self::server(server)?);
        let (pem, authority) = self.authorities(&cluster)?;
        config.root_cert = pem.as_deref().map(|pem| usable_roots(pem, &authority)).transpose()?;
        config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or_default();
        config.tls_server_name = cluster.tls_server_name.clone().filter(|name| !name.is_empty());

        let secret = |secret: Option<SecretString>| {
            secret.map(|secret| secret.expose_secret().to_owned()).filter(|text| !text.is_empty())
        };
        let (certificate, source) = self.read_field(CERTIFICATE, user.client_certificate_data.take().as_ref())?;
        let (private, key) = self.read_field(KEY, secret(user.client_key_data.take()).as_ref())?;
        let pair = match (certificate, private) {
            (Some(certificate), Some(private)) => Some((certificate, private)),
            (None, None) => None,
            (Some(_), None) => return Err(format!("there is a {CERTIFICATE}, but no {KEY}")),
            (None, Some(_)) => return Err(format!("there is a {KEY}, but no {CERTIFICATE}")),
        };
        let (token, token_source) = self.token(secret(user.token.take()))?.unzip();
        let source = if pair.is_some() { source } else { token_source.unwrap_or_default() };
        let credentials = Credentials { token, pair, expires: None };
        let is_known = user.username.is_some() || credentials != Credentials::default();
        let mut exec = user.exec.take().filter(|_| !is_known);
        if user.auth_provider.take().is_some() && !is_known && exec.is_none() {
            return Err("its user has an auth-provider, which the supervisor does not use: exec, tokenFile or a client certificate".to_owned());
        }
        let origin = CredentialOrigin {
            kubeconfig: kubeconfig.to_owned(),
            server: without_userinfo(server),
            authority,
            user: source,
            key,
        };
        if let Some(exec) = exec.as_mut().filter(|exec| exec.provide_cluster_info) {
            cluster.certificate_authority = None;
            cluster.certificate_authority_data = pem.map(base64);
            exec.cluster = Some((&cluster).try_into().map_err(|error: KubeconfigError| error.to_string())?);
        }
        if user.username.is_some() {
            user.password.get_or_insert_default(); // kube takes none for no user at all
        }
        (user.token_file, user.client_certificate, user.client_key) = (None, None, None);
        config.auth_info = user;
        let (user, key) = (origin.user.clone(), origin.key.clone());
        let mut login = Login { config, proxy_url: cluster.proxy_url, exec, identity: Identity::default(), origin };
        login.set_credentials(credentials, [&user, &key])?;
        Ok(login)
    }

    /// The certificate authorities and where they are from.
    fn authorities(&mut self, cluster: &Cluster) -> Result<(Option<Vec<u8>>, String), String> {
        let (pem, source) = self.read_field(AUTHORITY, cluster.certificate_authority_data.as_ref())?;
        Ok((pem.map(|pem| identity::pem_sections(&pem, "CERTIFICATE")), source))
    }

    /// The bearer token and where it is from. Where there is an inline one beside a file, it is for the time until the
    /// file is there, as for client-go.
    fn token(&mut self, inline: Option<String>) -> Result<Option<(String, String)>, String> {
        let inline = inline.map(|token| (token, "token".to_owned()));
        let Some((file, content)) = self.files.remove(TOKEN) else { return Ok(inline) };
        let source = format!("{TOKEN} {}", file.display());
        let found = content.and_then(|content| {
            let token = String::from_utf8(content).map_err(|_| "it is not text".to_owned())?.trim().to_owned();
            if token.is_empty() { Err("it is empty".to_owned()) } else { Ok(token) }
        });
        match found {
            Ok(token) => Ok(Some((token, source))),
            Err(why) => inline.map(Some).ok_or_else(|| format!("{source}: {why}")),
        }
    }

    /// A field's content, and what to call it: inline data win over a file.
    fn read_field(&mut self, field: &'static str, data: Option<&String>) -> Result<(Option<Vec<u8>>, String), String> {
        if let Some(data) = data {
            let bytes =
                kubelet_config::digest::decode_base64(data).ok_or_else(|| format!("{field}-data is not base64"))?;
            return Ok((Some(bytes), format!("{field}-data")));
        }
        let Some((file, content)) = self.files.remove(field) else { return Ok((None, String::new())) };
        let source = format!("{field} {}", file.display());
        Ok((Some(content.map_err(|why| format!("{source}: {why}"))?), source))
    }
}

impl Login {
    /// Takes them over. `from` is what certificate and key are called.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn set_credentials(&mut self, credentials: Credentials, from: [&str; 2]) -> Result<(), String> {
        let user = &mut self.config.auth_info;
        if let Some((certificate, key)) = credentials.pair {
            self.identity = identity::parse_certificate(&certificate).map_err(|why| format!("{}: {why}", from[0]))?;
            // One file may hold both, and other sections, which kube does not take.
            let key = identity::pem_sections(&key, "PRIVATE KEY");
            if key.is_empty() {
                return Err(format!("{}: there is no PEM private key in it", from[1]));
            }
            user.client_certificate_data = Some(base64(identity::pem_sections(&certificate, "CERTIFICATE")));
            user.client_key_data = Some(base64(key).into());
        }
        if let Some(token) = credentials.token {
            // What no header takes would fail every request, and say nothing of where it came from.
            if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err("the token is empty, or holds characters that no HTTP header may".to_owned());
            }
            user.token = Some(token.into());
        }
        Ok(())
    }
}

/// What cannot be read is left out, as by Go's `AppendCertsFromPEM`; kube would take none of the bundle.
fn usable_roots(pem: &[u8], source: &str) -> Result<Vec<Vec<u8>>, String> {
    let roots = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    let usable = roots.filter(|root| RootCertStore::empty().add(root.clone()).is_ok());
    let usable: Vec<_> = usable.map(|root| root.to_vec()).collect();
    if usable.is_empty() { Err(format!("{source}: {NO_CERTIFICATE}")) } else { Ok(usable) }
}

/// Standard base64.
fn base64(bytes: Vec<u8>) -> String {
    json!(ByteString(bytes)).as_str().unwrap_or_default().to_owned()
}

/// A regular file: anything else could make us wait.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let words = |error: std::io::Error| error.to_string();
    if !std::fs::metadata(path).map_err(words)?.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(words)?.take(MAX_BYTES).read_to_end(&mut bytes).map_err(words)?;
    Ok(bytes)
}

fn parse(text: &[u8]) -> Result<Kubeconfig, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.len() > yaml::MAX_BYTES {
        return Err(format!("it has more than {} bytes", yaml::MAX_BYTES));
    }
    // A message may quote a line, and any line can be a secret. By way of JSON: code that reads YAML into kube's types would be
    // one of the largest parts of the program.
    let unread = |words: &str| format!("it is not a kubeconfig{}", parse_position(words));
    let document = yaml::parse(text).map_err(|why| unread(&why))?;
    serde_json::from_value(document.value).map_err(|_| unread(""))
}

/// Where a parser gave up, from its message.
fn parse_position(words: &str) -> String {
    let number = |after: &str| {
        let rest = words.split(after).nth(1)?.trim_start_matches([' ', ':']);
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        (!digits.is_empty()).then_some(digits)
    };
    number("line").map_or_else(String::new, |line| format!(": the parser gives up in line {line}"))
}

/// Cluster and user of the current context. A user that is not there is anonymous, as for client-go.
fn current(config: Kubeconfig) -> Result<(Cluster, AuthInfo), String> {
    let name = config.current_context.filter(|name| !name.is_empty()).ok_or("it has no current-context")?;
    let context = config.contexts.into_iter().find(|named| named.name == name).and_then(|named| named.context);
    let context = context.ok_or_else(|| format!("its current-context {name:?} is not among its contexts"))?;
    let cluster = config.clusters.into_iter().find(|named| named.name == context.cluster);
    let mut cluster = cluster
        .and_then(|named| named.cluster)
        .ok_or_else(|| format!("the cluster {:?} of context {name:?} is not there", context.cluster))?;
    let user = config.auth_infos.into_iter().find(|named| Some(&named.name) == context.user.as_ref());
    let mut user = user.and_then(|named| named.auth_info).unwrap_or_default();
    // For client-go an empty field is none.
    for field in [
        &mut cluster.server,
        &mut cluster.certificate_authority_data,
        &mut user.client_certificate_data,
        &mut user.username,
        &mut user.impersonate,
    ] {
        field.take_if(|text| text.is_empty());
    }
    Ok((cluster, user))
}

/// Without a scheme it is https: client-go would take http where no `certificate-authority` is given, and keep the credentials to itself.
fn server(given: &str) -> Result<Uri, String> {
    let url = if given.contains("://") { given.to_owned() } else { format!("https://{given}") };
    let uri: Uri = url.parse().map_err(|error| format!("server is not a URL: {error}"))?; // the URL is not repeated: it may hold a password
    Ok(if uri.scheme_str() == Some("http") { proxy::with_port(uri, 80) } else { uri }) // `Tunnel` asks a proxy for 443 where none is named
}

/// For messages: a URL may have a user and a password.
fn without_userinfo(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let end = rest.find('/').unwrap_or(rest.len());
    let host = rest.get(..end).and_then(|authority| authority.rfind('@')).map_or(0, |at| at + 1);
    let rest = rest.get(host..).unwrap_or_default();
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
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
        let why = server("https://u:SECRET@a b").unwrap_err();
        assert!(why.starts_with("server is not a URL: ") && !why.contains("SECRET"), "{why}");
    }
}
