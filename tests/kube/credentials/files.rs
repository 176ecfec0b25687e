//! Kubeconfigs in every state, and the words for what is wrong with them.

use std::path::Path;

use kubelet_supervisor::adapters::kube::{Access as _, ClientLayer, Connected, KubeconfigAccess};
use kubelet_supervisor::adapters::metrics::Metrics;
use serde_json::{Value, json};

use testkit::api_server::tls::Authority;

const NODE: &str = "n1";

/// A directory with a kubeconfig in it.
pub(super) struct CredentialDir {
    dir: tempfile::TempDir,
    metrics: Metrics,
}

impl CredentialDir {
    pub(super) fn new() -> CredentialDir {
        CredentialDir { dir: tempfile::tempdir().unwrap(), metrics: Metrics::new() }
    }

    fn access(&self) -> KubeconfigAccess {
        let kubeconfig = self.dir.path().join("kubelet.conf");
        let hostname_override = Some("other".to_owned());
        KubeconfigAccess { kubeconfig, node_name: None, hostname_override, metrics: self.metrics.clone() }
    }

    pub(super) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    pub(super) fn kubeconfig(&self, cluster: &Value, user: &Value) {
        self.write("kubelet.conf", super::kubeconfig(cluster, user).to_string());
    }

    pub(super) async fn connect(&self) -> Result<Connected, String> {
        self.access().connect(ClientLayer::new(self.metrics.clone())).await
    }

    /// Why it cannot be used: the kubeconfig is named, whatever it is.
    async fn refusal(&self) -> String {
        let why = self.connect().await.err().expect("a refusal");
        assert!(why.starts_with(&self.dir.path().join("kubelet.conf").display().to_string()), "{why}");
        assert!(!why.contains("SECRET"), "{why}");
        why
    }
}

fn base64(bytes: &str) -> Value {
    json!(k8s_openapi::ByteString(bytes.as_bytes().to_vec()))
}

#[tokio::test]
async fn what_is_wrong_with_a_kubeconfig() {
    let credentials = CredentialDir::new();
    let refused = async |text: String, words: &str| {
        credentials.write("kubelet.conf", text);
        let why = credentials.refusal().await;
        assert!(why.contains(words), "{words}: {why}");
    };
    let why = credentials.refusal().await;
    assert!(why.contains("No such file or directory"), "{why}");
    let whole = super::kubeconfig(&json!({}), &json!({"token": "SECRET"}));
    let without = |pointer: &str, value: Value| {
        let mut config = whole.clone();
        *config.pointer_mut(pointer).unwrap() = value;
        config.to_string()
    };
    for (text, words) in [
        (String::new(), "it is empty"),
        ("\n \n".to_owned(), "it is empty"),
        ("{SECRET: ".to_owned(), "it is not a kubeconfig"),
        ("users:\n- name: c\n  user: {token: SECRET\nx".to_owned(), "it is not a kubeconfig"),
        ("users:\n- name: c\n  user: {token: [SECRET]}\n".to_owned(), "it is not a kubeconfig"),
        ("kind: Config".to_owned(), "it has no current-context"),
        (without("/current-context", json!("")), "it has no current-context"),
        (without("/current-context", json!("x")), "current-context \"x\" is not among its contexts"),
        (without("/contexts/0/context/cluster", json!("x")), "cluster \"x\" of context \"c\" is not there"),
        (without("/clusters/0/cluster/server", json!("")), "there is no server in its cluster"),
        (without("/users/0/user/token", json!("SECRET\nX: y")), "characters that no HTTP header may"),
    ] {
        refused(text, words).await;
    }
    // As it is at any moment of being written: a file that is cut somewhere.
    let whole = format!("{whole:#}");
    for end in 0..whole.trim_end().len() {
        credentials.write("kubelet.conf", whole.get(..end).unwrap());
        credentials.refusal().await;
    }
    credentials.write("kubelet.conf", &whole);
    let connected = credentials.connect().await.unwrap();
    assert_eq!((connected.node_name.as_str(), connected.notices.len()), ("other", 0));
}

#[tokio::test]
async fn what_is_wrong_with_the_files_it_names() {
    let credentials = CredentialDir::new();
    let authority = Authority::new("ca");
    let (one, two) = (authority.node(NODE, 1, 2100), authority.node(NODE, 2, 2100));
    credentials.write("ca.crt", &authority.pem);
    credentials.write("one.crt", &one.certificate);
    credentials.write("one.key", &one.key);
    credentials.write("two.key", &two.key);
    let locked = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    credentials.write("locked.key", locked);
    credentials.write("empty", "");
    credentials.write("words", "SECRET words");
    std::fs::create_dir(credentials.dir.path().join("dir")).unwrap();
    nix::unistd::mkfifo(&credentials.dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();

    let ca = |file: &str| json!({"certificate-authority": file});
    let pair = |certificate: &str, key: &str| json!({"client-certificate": certificate, "client-key": key});
    for (cluster, user, words) in [
        (ca("absent"), json!({}), "/certificate-authority /D/absent: No such file"),
        (ca("words"), json!({}), "/certificate-authority /D/words: there is no PEM certificate in it"),
        (ca("dir"), json!({}), "/certificate-authority /D/dir: it is not a regular file"),
        (ca("fifo"), json!({}), "/certificate-authority /D/fifo: it is not a regular file"),
        (json!({"certificate-authority-data": "?"}), json!({}), "/certificate-authority-data is not base64"),
        (ca("ca.crt"), pair("absent", "one.key"), "/client-certificate /D/absent: No such file"),
        (ca("ca.crt"), pair("empty", "one.key"), "/client-certificate /D/empty: there is no PEM certificate in it"),
        (ca("ca.crt"), pair("one.crt", "absent"), "/client-key /D/absent: No such file"),
        (ca("ca.crt"), pair("one.crt", "one.crt"), "/client-key /D/one.crt: there is no PEM private key in it"),
        (
            ca("ca.crt"),
            pair("one.crt", "two.key"),
            "/client-certificate /D/one.crt: certificate and key do not belong together",
        ),
        (
            ca("ca.crt"),
            pair("one.crt", "locked.key"),
            "/client-key /D/locked.key: the key is of no kind that TLS takes",
        ),
        (ca("ca.crt"), json!({"client-certificate": "one.crt"}), "/there is a client-certificate, but no client-key"),
        (ca("ca.crt"), json!({"client-key": "one.key"}), "/there is a client-key, but no client-certificate"),
        (json!({}), json!({"client-certificate-data": "?"}), "/client-certificate-data is not base64"),
        (json!({}), json!({"tokenFile": "absent"}), "/tokenFile /D/absent: No such file"),
        (json!({}), json!({"tokenFile": "empty"}), "/tokenFile /D/empty: it is empty"),
        (json!({}), json!({"tokenFile": "words"}), "characters that no HTTP header may"),
        (json!({}), json!({"auth-provider": {"name": "gcp"}}), "/its user has an auth-provider"),
        (json!({"tls-server-name": "a b"}), json!({"token": "t"}), "/tls-server-name: "),
        (json!({"server": "https://u:SECRET@a b"}), json!({"token": "t"}), "/server is not a URL: "),
        (json!({}), json!({"token": "t", "as": "a\nb"}), "/its user's as fields: "),
        (
            json!({"proxy-url": "socks4://u:SECRET@proxy"}),
            json!({"token": "t"}),
            "/its proxy-url is not the URL of a proxy that can be used",
        ),
        (
            json!({"proxy-url": "ftp://u:SECRET@proxy"}),
            json!({"token": "t"}),
            "/its proxy-url is not the URL of a proxy that can be used",
        ),
    ] {
        credentials.kubeconfig(&cluster, &user);
        let why = credentials.refusal().await.replace(&credentials.dir.path().display().to_string(), "/D");
        assert!(why.replace("/D/kubelet.conf: ", "/").contains(words), "{words}: {why}");
    }
}

#[tokio::test]
async fn what_can_be_used() {
    let credentials = CredentialDir::new();
    let authority = Authority::new("ca");
    let pair = authority.node(NODE, 1, 2100);
    let both = format!("{}{}", pair.certificate, pair.key);
    credentials.write("ca.crt", format!("# words\n{0}{0}", authority.pem));
    credentials.write("both.pem", &both);
    std::os::unix::fs::symlink("both.pem", credentials.dir.path().join("current.pem")).unwrap();
    credentials.write("token", "t\n");
    let ca = json!({"certificate-authority": "ca.crt"});
    for (cluster, user, node) in [
        (ca.clone(), json!({"client-certificate": "current.pem", "client-key": "current.pem"}), NODE),
        (
            json!({"certificate-authority-data": base64(&authority.pem), "certificate-authority": "/absent"}),
            json!({"client-certificate-data": base64(&pair.certificate), "client-key-data": base64(&pair.key)}),
            NODE,
        ),
        // A plugin is not needed then.
        (
            ca.clone(),
            json!({"client-certificate": "both.pem", "client-key": "both.pem", "exec": {"command": "./absent"}}),
            NODE,
        ),
        (ca.clone(), json!({"tokenFile": "token"}), "other"),
        (ca.clone(), json!({"tokenFile": "absent", "token": "t"}), "other"),
        (ca, json!({}), "other"),
        (json!({"insecure-skip-tls-verify": true, "tls-server-name": "api"}), json!({"token": "t"}), "other"),
        (json!({"server": "http://127.0.0.1:1", "proxy-url": "http://127.0.0.1:2"}), json!({"token": "t"}), "other"),
    ] {
        credentials.kubeconfig(&cluster, &user);
        let connected = credentials.connect().await.unwrap_or_else(|why| panic!("{cluster} {user}: {why}"));
        assert_eq!(connected.node_name, node, "{cluster} {user}");
        assert!(connected.notices.is_empty());
        assert_eq!(connected.renew_at.is_some(), node == NODE, "the end of the certificate is awaited");
        let end = if node == NODE { "4133894400" } else { "0" };
        let metrics = credentials.metrics.open_metrics();
        let metric = "kubelet_supervisor_client_certificate_expiration_timestamp_seconds ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(metric)).unwrap();
        assert!(value.starts_with(end), "{value}");
    }
}

#[tokio::test]
async fn an_expired_certificate_is_used_and_spoken_of() {
    let credentials = CredentialDir::new();
    let pair = Authority::new("ca").node(NODE, 1, 2020);
    credentials.write("both.pem", format!("{}{}", pair.certificate, pair.key));
    credentials.kubeconfig(
        &json!({"insecure-skip-tls-verify": true}),
        &json!({"client-certificate": "both.pem", "client-key": "both.pem"}),
    );
    let connected = credentials.connect().await.unwrap();
    let notice = &connected.notices[0];
    let named = format!("client-certificate {} in ", credentials.dir.path().join("both.pem").display());
    assert!(notice.contains(&named) && notice.contains("expired at 2020-12-31T00:00:00Z"), "{notice}");
}

#[tokio::test]
async fn the_fingerprint_changes_with_the_content_and_with_nothing_else() {
    let credentials = CredentialDir::new();
    let access = credentials.access();
    let at = |name: &str| credentials.dir.path().join(name);
    let swap = |target: &str, link: &str| {
        std::os::unix::fs::symlink(target, at("next")).unwrap();
        std::fs::rename(at("next"), at(link)).unwrap();
    };
    let mut fingerprints = vec![access.fingerprint().await];
    let mut changed = async |what: &str| {
        let fingerprint = access.fingerprint().await;
        assert_eq!(fingerprint, access.fingerprint().await);
        assert!(!fingerprints.contains(&fingerprint), "{what}");
        fingerprints.push(fingerprint);
    };
    credentials.write("kubelet.conf", "");
    changed("it is there").await;
    let user = json!({"client-certificate": "current.pem", "client-key": "current.pem", "tokenFile": "token",
        "exec": {"command": "./plugin"}});
    credentials.kubeconfig(&json!({"certificate-authority": "ca.crt"}), &user);
    changed("it has content").await;
    for name in ["ca.crt", "token", "one.pem", "plugin"] {
        credentials.write(name, "1");
        if name != "one.pem" {
            changed(name).await;
            credentials.write(name, "12");
            changed(name).await;
        }
    }
    swap("one.pem", "current.pem");
    changed("a link").await;
    credentials.write("two.pem", "2");
    swap("two.pem", "current.pem");
    changed("another link").await;
    std::fs::remove_file(at("token")).unwrap();
    changed("a file that is gone").await;
    credentials.write("token", "");
    changed("an empty one").await;
    let last = access.fingerprint().await;
    credentials.write("token", "");
    credentials.write("unrelated", "x");
    swap("two.pem", "current.pem");
    assert_eq!(access.fingerprint().await, last);
    assert!(Path::new(&at("current.pem")).is_symlink());
}
