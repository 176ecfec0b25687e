//! The kubelet's kubeconfig: read twice it is the same, and what is told of it holds none of its secrets.

use std::fs;

use kubelet_supervisor::adapters::kube::CredentialFiles;

pub(crate) fn check(data: &[u8]) {
    let path = super::directory().join("kubeconfig");
    fs::write(&path, data).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (files, again) = (CredentialFiles::load(&path), CredentialFiles::load(&path));
    assert_eq!(files.fingerprint(), again.fingerprint());
    match files.login() {
        Ok(login) => {
            assert!(!login.origin.server.is_empty(), "a client without a server");
            for text in [&login.origin.server, &login.origin.authority, &login.origin.user] {
                assert!(!text.contains(SECRET), "a secret is told: {text:?}");
            }
        }
        Err(why) => {
            super::assert_message(&why, 4096);
            assert!(!why.contains(SECRET), "a secret is told: {why:?}");
        }
    }
}

/// What the seeds have for tokens, passwords and keys.
const SECRET: &str = "c2VjcmV0";
