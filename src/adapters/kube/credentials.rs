//! The kubelet's own credentials: found through its `--kubeconfig`, looked at for changes.

use std::path::{Path, PathBuf};

use kube::config::Kubeconfig;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

/// What the client certificate says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `system:node:<name>` without the prefix.
    pub node_name: Option<String>,
    /// End of validity, seconds since 1970.
    pub not_after: Option<u64>,
}

/// Reads a kubeconfig.
///
/// # Errors
/// A message that names the file.
pub fn read(path: &Path) -> Result<Kubeconfig, String> {
    // kube's own message lacks the cause.
    std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Kubeconfig::read_from(path).map_err(|error| format!("{}: {}", path.display(), chain(&error)))
}

/// A hash over the kubeconfig and every file it names, links followed; it changes when a
/// credential is rotated.
#[must_use]
pub fn fingerprint(path: &Path) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut add = |path: &Path| hash.update(std::fs::read(path).unwrap_or_default());
    add(path);
    if let Ok(config) = Kubeconfig::read_from(path) {
        let clusters = config.clusters.iter().filter_map(|named| named.cluster.as_ref()?.certificate_authority.clone());
        let users = config.auth_infos.iter().filter_map(|named| named.auth_info.as_ref());
        let users =
            users.flat_map(|user| [user.client_certificate.clone(), user.client_key.clone(), user.token_file.clone()]);
        for file in clusters.chain(users.flatten()) {
            add(&PathBuf::from(file));
        }
    }
    hash.finalize().into()
}

/// Looks at the client certificate of the current context.
///
/// # Errors
/// A message that names the file, when it cannot be read or used.
pub fn identity(config: &Kubeconfig) -> Result<Identity, String> {
    let context = config.current_context.as_deref().unwrap_or_default();
    let context = config.contexts.iter().find(|named| named.name == context).and_then(|named| named.context.as_ref());
    let user = context.and_then(|context| context.user.clone());
    let user = config
        .auth_infos
        .iter()
        .find(|named| Some(&named.name) == user.as_ref())
        .and_then(|named| named.auth_info.as_ref());
    let Some(user) = user else { return Ok(Identity::default()) };
    let (name, pem) = match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => {
            let pem = decode_base64(data).ok_or("client-certificate-data is not base64")?;
            ("client-certificate-data".to_owned(), pem)
        }
        (None, Some(path)) => {
            (path.clone(), std::fs::read(path).map_err(|error| format!("client certificate {path}: {error}"))?)
        }
        (None, None) => return Ok(Identity::default()),
    };
    let der = CertificateDer::pem_slice_iter(&pem)
        .next()
        .ok_or_else(|| format!("client certificate {name}: there is no PEM certificate in it"))?
        .map_err(|error| format!("client certificate {name}: {error}"))?;
    let certificate = Certificate::from_der(&der).map_err(|error| format!("client certificate {name}: {error}"))?;
    let body = certificate.tbs_certificate();
    if body.version() != x509_cert::Version::V3 {
        return Err(format!(
            "client certificate {name} is X.509 {:?}; only version 3 can be used for TLS, issue it again with extensions",
            body.version()
        ));
    }
    Ok(Identity {
        node_name: common_name(&certificate).and_then(|name| name.strip_prefix("system:node:").map(str::to_owned)),
        not_after: Some(body.validity().not_after.to_unix_duration().as_secs()),
    })
}

fn common_name(certificate: &Certificate) -> Option<String> {
    let common_name = x509_cert::der::oid::db::rfc4519::CN;
    let subject = certificate.tbs_certificate().subject();
    let value = subject.iter().find(|part| part.oid == common_name).map(|part| &part.value)?;
    String::from_utf8(value.value().to_vec()).ok()
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(out)
}

/// An error and its causes, once each.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

/// The name the kubelet would register under, when no certificate tells.
///
/// Upstream: `GetHostname` (component-helpers/node/util): override or host name, lower-cased.
#[must_use]
pub fn host_name(hostname_override: Option<&str>) -> String {
    let host = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    hostname_override.map_or_else(host, str::to_owned).trim().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64() {
        assert_eq!(decode_base64("aGVs\nbG8=").unwrap(), b"hello");
        assert_eq!(decode_base64("aGVsbG8h").unwrap(), b"hello!");
        assert!(decode_base64("a!").is_none());
    }

    #[test]
    fn the_override_wins_and_is_lower_case() {
        assert_eq!(host_name(Some(" Node-1 ")), "node-1");
        assert!(!host_name(None).is_empty());
    }
}
