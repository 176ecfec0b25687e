//! The user's connection to the cluster.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::api::client::{Client, RetryPolicy};
use crate::failure::Failure;
pub(crate) use crate::fleet::leader_election::NAMESPACE;
use kubelet_config::assignment::is_namespace;

/// Who this client is, to others that want the same Lease.
pub(crate) fn identity() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    // The time keeps two containers apart, which have the same process id and may have the same name.
    let now = jiff::Timestamp::now().as_microsecond();
    format!("{host} ({}, {now:x}.{number}, v{})", std::process::id(), env!("CARGO_PKG_VERSION"))
}

/// As kubectl has them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Options {
    /// The kubeconfig file.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The kubeconfig's cluster.
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<String>,
    /// The kubeconfig's user.
    #[arg(long, global = true, value_name = "NAME")]
    user: Option<String>,
    /// Do it in the name of this user.
    #[arg(long = "as", global = true, value_name = "USER")]
    impersonate: Option<String>,
    /// The namespace of the ConfigMaps, and of labels that name none.
    #[arg(short, long, global = true, value_name = "NAMESPACE", default_value = NAMESPACE, value_parser = namespace)]
    pub(crate) namespace: String,
}

pub(crate) fn namespace(text: &str) -> Result<String, String> {
    is_namespace(text).then(|| text.to_owned()).ok_or_else(|| "a namespace has a-z, 0-9 and -, at most 63".to_owned())
}

impl Options {
    fn names_nothing(&self) -> bool {
        self.context.is_none() && self.cluster.is_none() && self.user.is_none()
    }
}

/// What every command needs.
pub struct Context {
    /// With the user's credentials.
    pub client: kube::Client,
    /// Of ConfigMaps.
    pub namespace: String,
    /// In somebody else's name.
    pub impersonates: bool,
}

impl Context {
    /// Reads the kubeconfig; asks the API server nothing.
    ///
    /// # Errors
    /// The file, or the entry in it, that is not there or makes no sense.
    pub(crate) async fn new(options: &Options) -> Result<Self, Failure> {
        let chosen = KubeConfigOptions {
            context: options.context.clone(),
            cluster: options.cluster.clone(),
            user: options.user.clone(),
        };
        let config = match &options.kubeconfig {
            Some(file) => {
                let read =
                    Kubeconfig::read_from(file).map_err(|error| Failure::new(format!("--kubeconfig: {error}")))?;
                Config::from_custom_kubeconfig(read, &chosen).await
            }
            None => match Config::from_kubeconfig(&chosen).await {
                // A Job in the cluster has no kubeconfig.
                Err(_) if options.names_nothing() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => {
                    return Self::from_config(
                        Config::incluster().map_err(|error| Failure::new(error.to_string()))?,
                        options,
                    );
                }
                result => result,
            },
        };
        Self::from_config(config.map_err(|error| Failure::new(format!("the kubeconfig: {error}")))?, options)
    }

    /// For a command that somebody waits for.
    pub(crate) fn api(&self) -> Client {
        Client::new(self.client.clone(), &self.namespace, RetryPolicy::ONCE)
    }

    fn from_config(mut config: Config, options: &Options) -> Result<Self, Failure> {
        config.default_retry = false; // it holds back a 503, such as of a kubelet that is away, for six minutes
        if options.impersonate.is_some() {
            config.auth_info.impersonate.clone_from(&options.impersonate);
        }
        let impersonates = config.auth_info.impersonate.is_some();
        let client =
            kube::Client::try_from(config).map_err(|error| Failure::new(format!("the kubeconfig: {error}")))?;
        Ok(Self { client, namespace: options.namespace.clone(), impersonates })
    }
}
