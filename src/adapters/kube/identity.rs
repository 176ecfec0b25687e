//! Who we are: what the client certificate says, and PEM as far as that takes.

use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

/// What the client certificate says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `system:node:<name>` without the prefix.
    pub(crate) node_name: Option<String>,
    /// End of validity, seconds since 1970.
    pub(crate) not_after: Option<u64>,
}

/// Looks at the first certificate of a PEM file.
pub(crate) fn parse_certificate(pem: &[u8]) -> Result<Identity, String> {
    let der = CertificateDer::pem_slice_iter(pem).next().ok_or(NO_CERTIFICATE)?.map_err(|error| error.to_string())?;
    let certificate = Certificate::from_der(&der).map_err(|error| error.to_string())?;
    let body = certificate.tbs_certificate();
    if body.version() != x509_cert::Version::V3 {
        return Err(format!(
            "it is X.509 {:?}; only version 3 can be used for TLS, issue it again with extensions",
            body.version()
        ));
    }
    Ok(Identity {
        node_name: common_name(&certificate).and_then(|name| name.strip_prefix("system:node:").map(str::to_owned)),
        not_after: Some(body.validity().not_after.to_unix_duration().as_secs()),
    })
}

/// Said of certificates and bundles alike.
pub(crate) const NO_CERTIFICATE: &str = "there is no PEM certificate in it";

fn common_name(certificate: &Certificate) -> Option<String> {
    let common_name = x509_cert::der::oid::db::rfc4519::CN;
    let subject = certificate.tbs_certificate().subject();
    let value = subject.iter().find(|part| part.oid == common_name).map(|part| &part.value)?;
    String::from_utf8(value.value().to_vec()).ok()
}

/// Those whole sections of a PEM file whose label ends like this: kubelet-client-current.pem has certificate and key in one. What is
/// cut off is left out, as by Go's.
pub(crate) fn pem_sections(pem: &[u8], label: &str) -> Vec<u8> {
    let (mut kept, mut section) = (String::new(), None);
    for line in String::from_utf8_lossy(pem).lines().map(str::trim) {
        if let Some(begun) = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----")) {
            section = begun.ends_with(label).then(String::new);
        }
        let Some(text) = &mut section else { continue };
        text.extend([line, "\n"]);
        if line.starts_with("-----END ") {
            kept.extend(section.take());
        }
    }
    kept.into_bytes()
}

/// The name the kubelet would register under, when no certificate tells.
///
/// Upstream: `GetHostname` (component-helpers/node/util): override or host name, lower-cased.
pub(crate) fn host_name(hostname_override: Option<&str>) -> String {
    let host = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    hostname_override.map_or_else(host, str::to_owned).trim().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_and_key_in_one_file_are_distinguished() {
        let one = "words before\n-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\nbetween\n\
                   -----BEGIN EC PRIVATE KEY-----\r\nBB==\r\n-----END EC PRIVATE KEY-----\r\nbehind";
        let text = |label| String::from_utf8(pem_sections(one.as_bytes(), label)).unwrap();
        assert_eq!(text("CERTIFICATE"), "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n");
        assert_eq!(text("PRIVATE KEY"), "-----BEGIN EC PRIVATE KEY-----\nBB==\n-----END EC PRIVATE KEY-----\n");
        assert_eq!(text("X509 CRL"), "");
        let cut = format!("-----BEGIN CERTIFICATE-----\nCC\n{one}\n-----BEGIN CERTIFICATE-----\nDD");
        assert_eq!(pem_sections(cut.as_bytes(), "CERTIFICATE"), text("CERTIFICATE").into_bytes());
    }

    #[test]
    fn the_override_wins_and_is_lower_case() {
        assert_eq!(host_name(Some(" Node-1 ")), "node-1");
        assert!(!host_name(None).is_empty());
    }
}
