//! The user's connection to the cluster.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::api::client::Client;
use crate::failure::Failure;
pub(crate) use crate::fleet::leader_election::NAMESPACE;
use kubelet_config::assignment::is_namespace;

/// A connection that says nothing for so long is dead: the API server ends a watch before, and answers anything else sooner.
const SILENCE: Duration = Duration::from_secs(260);

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
    /// The kubeconfig file; default: as kubectl, KUBECONFIG or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig to use.
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The cluster in the kubeconfig to use.
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<String>,
    /// The user in the kubeconfig to use.
    #[arg(long, global = true, value_name = "NAME")]
    user: Option<String>,
    /// The user to impersonate.
    #[arg(long = "as", global = true, value_name = "USER")]
    impersonate: Option<String>,
    /// The namespace of the ConfigMaps.
    #[arg(short, long, global = true, value_name = "NAMESPACE", default_value = NAMESPACE, value_parser = namespace)]
    pub(crate) namespace: String,
}

pub(crate) fn namespace(text: &str) -> Result<String, String> {
    is_namespace(text).then(|| text.to_owned()).ok_or_else(|| "a namespace has a-z, 0-9 and -, at most 63".to_owned())
}

impl Options {
    fn names_nothing(&self) -> bool {
        self.kubeconfig.is_none() && self.context.is_none() && self.cluster.is_none() && self.user.is_none()
    }

    fn read(&self) -> Result<Kubeconfig, KubeconfigError> {
        self.kubeconfig.as_deref().map_or_else(Kubeconfig::read, Kubeconfig::read_from)
    }

    /// kube would go on without credentials.
    fn check_user(&self, kubeconfig: &Kubeconfig) -> Result<(), Failure> {
        let context = self.context.as_ref().or(kubeconfig.current_context.as_ref());
        let (named_by, user) = match (&self.user, context) {
            (Some(user), _) => ("--user".to_owned(), user),
            (None, Some(context)) => {
                let known = kubeconfig.contexts.iter().find(|known| known.name == *context);
                let user = known.and_then(|known| known.context.as_ref()?.user.as_ref());
                let Some(user) = user.filter(|user| !user.is_empty()) else { return Ok(()) };
                (format!("context {context:?}"), user)
            }
            (None, None) => return Ok(()),
        };
        let known = kubeconfig.auth_infos.iter().any(|known| known.name == *user);
        known.then_some(()).ok_or_else(|| {
            Failure::new(format!("{named_by}: the kubeconfig has no user {user:?}: see `kubectl config get-users`"))
        })
    }

    /// Which entry or file it is, and where to look.
    fn unusable(&self, error: &KubeconfigError) -> Failure {
        let named = |option: &'static str, is_given: bool, entry: &'static str| if is_given { option } else { entry };
        Failure::new(match error {
            KubeconfigError::ReadConfig(why, path) => {
                format!("kubeconfig {}: {why}; name another one by --kubeconfig or KUBECONFIG", path.display())
            }
            KubeconfigError::CurrentContextNotSet => {
                "the kubeconfig has no current-context: name one by --context, see `kubectl config get-contexts`"
                    .to_owned()
            }
            KubeconfigError::LoadContext(name) => format!(
                "{}: the kubeconfig has no context {name:?}: see `kubectl config get-contexts`",
                named("--context", self.context.is_some(), "current-context")
            ),
            KubeconfigError::LoadClusterOfContext(name) => format!(
                "{}: the kubeconfig has no cluster {name:?}: see `kubectl config get-clusters`",
                named("--cluster", self.cluster.is_some(), "its context")
            ),
            // The parser's has the text below it.
            error => format!("the kubeconfig: {}", error.to_string().lines().next().unwrap_or_default()),
        })
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
        let config = match options.read() {
            Ok(kubeconfig) => {
                options.check_user(&kubeconfig)?;
                Config::from_custom_kubeconfig(kubeconfig, &chosen).await
            }
            Err(error) => Err(error),
        };
        match config {
            // A Job in the cluster has no kubeconfig.
            Err(_) if options.names_nothing() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => {
                let config = Config::incluster().map_err(|error| Failure::new(error.to_string()))?;
                Self::from_config(config, options)
            }
            config => Self::from_config(config.map_err(|error| options.unusable(&error))?, options),
        }
    }

    /// For a command that somebody waits for.
    pub(crate) fn api(&self) -> Client {
        Client::new(self.client.clone(), &self.namespace)
    }

    fn from_config(mut config: Config, options: &Options) -> Result<Self, Failure> {
        config.default_retry = false; // it holds back a 503, such as of a kubelet that is away, for six minutes
        config.read_timeout = Some(SILENCE); // kube has none
        if options.impersonate.is_some() {
            config.auth_info.impersonate.clone_from(&options.impersonate);
        }
        let impersonates = config.auth_info.impersonate.is_some();
        let client =
            kube::Client::try_from(config).map_err(|error| Failure::new(format!("the kubeconfig: {error}")))?;
        Ok(Self { client, namespace: options.namespace.clone(), impersonates })
    }
}
