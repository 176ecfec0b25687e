//! How to get at the API server: clients, built from the kubelet's credentials whenever those change.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use tokio::time::Instant;

use super::client_layer::ClientLayer;
use super::credentials::{CredentialFiles, Fingerprint, Login};
use super::{exec_credential, identity, transport};
use crate::adapters::metrics::Metrics;

/// A plugin's credentials are replaced this long before they expire: for requests in flight, and clock skew.
const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// And not more often than this, whatever it says of their expiry.
const RENEW_MIN: Duration = Duration::from_secs(10);

/// A fresh client after this long does no harm, and no timer is asked for what it cannot do.
const END_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Where clients come from.
pub trait Access: Send + Sync + 'static {
    /// Changes when the credentials do. Cheap, and asks nobody.
    fn fingerprint(&self) -> BoxFuture<'_, Fingerprint>;

    /// Builds a client; nothing is sent. The layer goes round all of its requests.
    ///
    /// Fails with what is wrong, by the names in the user's files.
    fn connect(&self, layer: ClientLayer) -> BoxFuture<'_, Result<Connected, String>>;
}

/// A client, before its first request.
pub struct Connected {
    /// The client. A new one shares nothing with those before: no connection, no TLS session.
    pub client: Client,
    /// What it was built from.
    pub fingerprint: Fingerprint,
    /// Our Node.
    pub node_name: String,
    /// Where the credentials come from.
    pub origin: String,
    /// When to build another, even if no file changes.
    pub renew_at: Option<Instant>,
    /// What an operator should know.
    pub notices: Vec<String>,
}

/// The kubelet's kubeconfig.
#[derive(Clone, Debug)]
pub struct KubeconfigAccess {
    /// The kubelet's `--kubeconfig`.
    pub kubeconfig: PathBuf,
    /// `--node-name`.
    pub node_name: Option<String>,
    /// The kubelet's `--hostname-override`.
    pub hostname_override: Option<String>,
    /// They learn when the certificate ends.
    pub metrics: Metrics,
}

impl Access for KubeconfigAccess {
    fn fingerprint(&self) -> BoxFuture<'_, Fingerprint> {
        Box::pin(async { self.load_files().await.map(|files| files.fingerprint()).unwrap_or_default() })
    }

    fn connect(&self, layer: ClientLayer) -> BoxFuture<'_, Result<Connected, String>> {
        Box::pin(self.build(layer))
    }
}

impl KubeconfigAccess {
    async fn build(&self, layer: ClientLayer) -> Result<Connected, String> {
        let path = self.kubeconfig.display().to_string();
        let at = |why: String| format!("{path}: {why}");
        let files = self.load_files().await?;
        let fingerprint = files.fingerprint();
        let mut login = files.login()?;
        let mut renew_at = None;
        if let Some(exec) = login.exec.take() {
            let credentials = exec_credential::run(&exec).await.map_err(at)?;
            let plugin_name = format!("the credential plugin {}", exec.command.as_deref().unwrap_or_default());
            renew_at = credentials.expires.map(|expires| Instant::now() + renew_in(expires, Timestamp::now()));
            let from = ["its clientCertificateData", "its clientKeyData"];
            login.set_credentials(credentials, from).map_err(|why| at(format!("{plugin_name}: {why}")))?;
            (login.origin.key, login.origin.user) = (plugin_name.clone(), plugin_name);
        }
        // Its end is to be noticed and logged when it comes: a watch would go on beyond it.
        let end = login.identity.not_after.and_then(|end| ends_in(end, Timestamp::now()));
        renew_at = [renew_at, end.map(|end| Instant::now() + end)].into_iter().flatten().min();
        let mut notices = Vec::new();
        // 0 where there is none, also after there has been one.
        self.metrics.certificate_expires(login.identity.not_after.unwrap_or_default());
        notices.extend(expired(&login, Timestamp::now()));
        let node_name = self.node_name(&login, &mut notices);

        let layer = layer.with_origin(login.origin.clone());
        // Where the kubeconfig has no authority, the system's are read: not on the thread that minds the kubelet.
        let client = tokio::task::spawn_blocking(move || transport::client(login, &layer, env))
            .await
            .map_err(|error| error.to_string())?
            .map_err(at)?;
        Ok(Connected { client, fingerprint, node_name, origin: path, renew_at, notices })
    }

    /// Not on the thread that minds the kubelet: a file may be on a file system that hangs.
    async fn load_files(&self) -> Result<CredentialFiles, String> {
        let path = self.kubeconfig.clone();
        tokio::task::spawn_blocking(move || CredentialFiles::load(&path)).await.map_err(|error| error.to_string())
    }

    fn node_name(&self, login: &Login, notices: &mut Vec<String>) -> String {
        let fallback = || identity::host_name(self.hostname_override.as_deref());
        let certified = login.identity.node_name.clone();
        let name = self.node_name.clone().or_else(|| certified.clone()).unwrap_or_else(fallback);
        if let Some(certified) = certified.filter(|certified| *certified != name) {
            notices.push(format!("--node-name {name} is not the name in the client certificate, {certified}"));
        }
        name
    }
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Said of a certificate that is of no use any more.
fn expired(login: &Login, now: Timestamp) -> Option<String> {
    let not_after = i64::try_from(login.identity.not_after?).ok()?;
    if now.as_second() <= not_after {
        return None;
    }
    let time = Timestamp::from_second(not_after).map_or_else(|_| not_after.to_string(), |time| time.to_string());
    let origin = &login.origin;
    Some(format!(
        "the certificate of {} in {} expired at {time}. A kubelet with rotateCertificates renews its own before that; one \
         that missed it needs other credentials: a new {}, or a valid --bootstrap-kubeconfig and a restart of the kubelet",
        origin.user, origin.kubeconfig, origin.kubeconfig
    ))
}

/// Until a certificate is out of date; `None` if it is.
fn ends_in(not_after: u64, now: Timestamp) -> Option<Duration> {
    let left = not_after.checked_sub(u64::try_from(now.as_second()).ok()?)?;
    Some(Duration::from_secs(left.saturating_add(1)).min(END_MAX))
}

fn renew_in(expires: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(expires.duration_since(now)).unwrap_or_default();
    left.saturating_sub(RENEW_BEFORE.min(left / 4)).max(RENEW_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugins_credentials_are_renewed_in_time_and_not_in_a_loop() {
        let now = Timestamp::from_second(1_767_225_600).unwrap();
        let renew = |seconds: i64| renew_in(Timestamp::from_second(1_767_225_600 + seconds).unwrap(), now).as_secs();
        assert_eq!((renew(900), renew(100), renew(12), renew(0), renew(-99)), (840, 75, 10, 10, 10));
    }

    #[test]
    fn the_end_of_a_certificate_comes_once() {
        let now = Timestamp::from_second(1000).unwrap();
        let ends = |not_after| ends_in(not_after, now).map(|left| left.as_secs());
        assert_eq!((ends(1060), ends(1000), ends(999), ends(u64::MAX)), (Some(61), Some(1), None, Some(31_536_000)));
    }
}
