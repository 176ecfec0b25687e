//! The node's credentials with the real API server and the real kubelet: rotated under load, late, out of date.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::assignment::ConfigMap;
use crate::cluster::{pause, run, until};
use crate::supervisor::Case;

/// A directory of the case's own with a kubeconfig and what it names.
struct CredentialDir {
    dir: PathBuf,
    ca: PathBuf,
}

impl CredentialDir {
    fn new(case: &Case) -> CredentialDir {
        let dir = case.cluster.dir.join(case.name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let dir = CredentialDir { dir, ca: PathBuf::from(case.var("CA_CERT")) };
        std::fs::copy(&dir.ca, dir.at("ca.crt")).unwrap();
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": case.var("API_URL"), "certificate-authority": "ca.crt"}}],
            "users": [{"name": "c", "user": {"client-certificate": "current.pem", "client-key": "current.pem"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
        std::fs::write(dir.at("kubeconfig"), config.to_string()).unwrap();
        dir
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Issues a client certificate by the cluster's authority and swaps the link to it, as a kubelet does. The
    /// API server's audit log shows its groups. Gives the end of its validity,
    /// seconds since 1970.
    fn rotate(&self, user: &str, groups: &[&str], lasts: Duration) -> u64 {
        let mut authority = CertificateParams::default();
        authority.distinguished_name = rcgen::DistinguishedName::new();
        authority.distinguished_name.push(DnType::CommonName, "ca");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = std::fs::read_to_string(self.ca.with_extension("key")).unwrap();
        let issuer = Issuer::new(authority, KeyPair::from_pem(&key).unwrap());

        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let end = Duration::from_secs((now + lasts).as_secs());
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        // A name holds one value of each type here; by its number, the organization is another type.
        let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        for (kind, group) in types.into_iter().zip(groups) {
            params.distinguished_name.push(kind, *group);
        }
        params.distinguished_name.push(DnType::CommonName, user);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + end;
        let key = KeyPair::generate().unwrap();
        let pem = format!("{}{}", params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem());
        let file = format!("client-{}.pem", now.as_millis());
        std::fs::write(self.at(&file), pem).unwrap();
        symlink(&file, self.at("next")).unwrap();
        std::fs::rename(self.at("next"), self.at("current.pem")).unwrap();
        end.as_secs()
    }
}

/// The kubelet's arguments with another kubeconfig.
fn args(case: &Case, kubeconfig: &Path) -> Vec<String> {
    let mut args = case.kubelet_args();
    args.retain(|arg| !arg.starts_with("--kubeconfig"));
    args.push(format!("--kubeconfig={}", kubeconfig.display()));
    args
}

fn node(case: &Case) -> String {
    format!("system:node:{}", case.var("NODE_NAME"))
}

/// A new version of the same content: adopted without a restart, with a status and an event of its own.
fn relabel(case: &Case, map: &ConfigMap, label: &str) -> ConfigMap {
    case.edit_map(map, &json!({ "metadata": { "labels": { "edited": label } } }))
}

const HOURS: Duration = Duration::from_secs(24 * 3600);

/// The API server with an audit log of what the node's credential does; as it was before when this is dropped.
struct Audit<'a> {
    case: &'a Case<'a>,
    log: PathBuf,
}

impl<'a> Audit<'a> {
    fn start(case: &'a Case<'a>) -> Audit<'a> {
        let dir = &case.cluster.dir;
        let policy = dir.join("audit-policy.yaml");
        // All stages: this API server tells of a watch that has begun only with its end, but of the request at once.
        let rules = json!([{"level": "Metadata", "users": [node(case)]}, {"level": "None"}]);
        std::fs::write(&policy, json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}).to_string())
            .unwrap();
        let log = dir.join("logs/audit.log");
        let _ = std::fs::remove_file(&log);
        let audit = Audit { case, log };
        audit.flags(&format!("--audit-policy-file={} --audit-log-path={}", policy.display(), audit.log.display()));
        audit
    }

    /// Gives the API server further flags.
    fn flags(&self, more: &str) {
        let own = self.case.var("APISERVER_FLAGS");
        self.case.restart_server(&format!("{own} {more}"));
    }

    /// How many of the supervisor's watches by this group came to this stage.
    fn watches(&self, stage: &str, group: &str) -> usize {
        let is_it = |(groups, event): &(Vec<String>, Value)| {
            event["verb"] == "watch" && event["stage"] == stage && groups.iter().any(|one| one == group)
        };
        self.requests().iter().filter(|request| is_it(request)).count()
    }

    /// The supervisor's requests with their groups, oldest first.
    fn requests(&self) -> Vec<(Vec<String>, Value)> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let of = |line: &str| {
            let event: Value = serde_json::from_str(line).ok()?;
            let kubelets = event["userAgent"].as_str().unwrap_or_default().starts_with("kubelet/");
            let groups = event["user"]["groups"].as_array()?.iter();
            let groups = groups.filter_map(|group| Some(group.as_str()?.to_owned())).collect();
            (!kubelets).then_some((groups, event))
        };
        let mut all: Vec<_> = text.lines().filter_map(of).collect();
        all.sort_by_key(|(_, event)| event["requestReceivedTimestamp"].as_str().unwrap_or_default().to_owned());
        all
    }
}

impl Drop for Audit<'_> {
    fn drop(&mut self) {
        // It may be a panic that brings us here.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.flags("")));
    }
}

/// The client certificate is replaced again and again while the ConfigMap changes and events flow.
pub fn rotated(case: &Case) {
    let audit = Audit::start(case);
    let dir = CredentialDir::new(case);
    let group = |number: u32| format!("rotation-{number}");
    dir.rotate(&node(case), &["system:nodes", &group(0)], HOURS);
    let supervisor = case.launch("4s", &case.dir(), args(case, &dir.at("kubeconfig")));
    supervisor.await_ready();
    let mut map = case.good(&case.id("map"), "maxPods: 41");
    case.prove(&map);
    let before = supervisor.process();
    let mut versions = Vec::new();
    for number in 1..=3 {
        dir.rotate(&node(case), &["system:nodes", &group(number)], HOURS);
        until(&format!("watches by {}", group(number)), || {
            map = relabel(case, &map, &format!("{number}-{}", versions.len()));
            versions.push(map.version.clone());
            case.await_proven(&map);
            let watches = audit.watches("RequestReceived", &group(number));
            if watches >= 2 { Ok(()) } else { Err(format!("{watches} after {} edits", versions.len())) }
        });
        let old = group(number - 1);
        until("the end of the old watches", || {
            let (begun, over) = (audit.watches("RequestReceived", &old), audit.watches("ResponseComplete", &old));
            if begun == over { Ok(()) } else { Err(format!("{over} of {begun} by {old}")) }
        });
    }
    assert_eq!(supervisor.process(), before, "the kubelet is not touched");
    // Each version was adopted, each adoption was told once.
    until("an event for each version", || {
        let events = case.events("KubeletConfigAdopted")?;
        let of = |version: &String| {
            events.iter().filter(|event| event.contains(&format!("ResourceVersion: {version},"))).count()
        };
        let wrong: Vec<_> = versions.iter().filter(|version| of(version) != 1).collect();
        if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:?} of {versions:?}: {events:#?}")) }
    });
    // What the API server saw: one certificate after the other, and no way back.
    let requests = audit.requests();
    let order: Vec<u32> =
        requests.iter().filter_map(|(groups, _)| (0..=3).find(|number| groups.contains(&group(*number)))).collect();
    let seen: Vec<u32> = {
        let mut seen = order.clone();
        seen.dedup();
        seen
    };
    assert_eq!(seen, [0, 1, 2, 3], "{order:?}");
    // A new edge in the Node authorizer takes a moment (403), a Lease is there after the first look for it (404).
    let codes: Vec<u64> = requests.iter().filter_map(|(_, event)| event["responseStatus"]["code"].as_u64()).collect();
    assert!(codes.iter().all(|code| matches!(code, 200..400 | 403 | 404)), "{codes:?}");
}

/// A node without a kubeconfig: the kubelet asks for a certificate, somebody approves, somebody signs.
pub fn late(case: &Case) {
    let dir = CredentialDir::new(case);
    if case.api("GET", &case.node_path(), None).is_ok() {
        case.ask("DELETE", &case.node_path(), None);
    }
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bootstrap"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers"}]});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    until("the bootstrappers' right", || {
        let _ = case.api("POST", bindings, Some(&binding));
        case.api("GET", &format!("{bindings}/bootstrap"), None)
    });
    dir.rotate("bootstrapper", &["system:bootstrappers"], HOURS);
    std::fs::rename(dir.at("kubeconfig"), dir.at("bootstrap")).unwrap();
    let mut args = args(case, &dir.at("kubeconfig"));
    args.retain(|arg| !arg.starts_with("--cert-dir"));
    args.push(format!("--cert-dir={}", dir.at("pki").display()));
    args.push(format!("--bootstrap-kubeconfig={}", dir.at("bootstrap").display()));
    args.push("--rotate-certificates".to_owned());
    let supervisor = case.launch("4s", &case.dir(), args);
    supervisor.await_log("no credentials yet (");
    let name = until("a request for a certificate", || pending(case));
    let before = supervisor.kubelet();
    run(Command::new(case.var("KUBECTL"))
        .args(["certificate", "approve", &name])
        .env("KUBECONFIG", case.var("KUBECONFIG")))
    .unwrap();
    sign(case, &dir, &name);
    until("the Node", || case.api("GET", &case.node_path(), None));
    assert_eq!(supervisor.kubelet(), before, "it is the kubelet that was started in the beginning");
    let map = case.assign_new(&case.id("map"), "maxPods: 42");
    case.await_proven(&map);
    case.await_configz("maxPods", &json!(42));
    supervisor.await_metric("kubelet_supervisor_kubelet_restarts_total", "cause=\"config\"", 1.0);
    assert!(supervisor.metric("kubelet_supervisor_client_certificate_expiration_timestamp_seconds", "") > 0.0);
}

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The name of the bootstrapper's request that nobody has decided on.
fn pending(case: &Case) -> Result<String, String> {
    let list = case.api("GET", REQUESTS, None)?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let open =
        items.iter().find(|item| item["spec"]["username"] == "bootstrapper" && item["status"]["conditions"].is_null());
    open.and_then(|item| Some(item["metadata"]["name"].as_str()?.to_owned())).ok_or(format!("{list:#}"))
}

/// What the controller manager's signer does, which this cluster does not have.
fn sign(case: &Case, dir: &CredentialDir, name: &str) {
    let mut request = case.ask("GET", &format!("{REQUESTS}/{name}"), None);
    std::fs::write(dir.at("request"), request["spec"]["request"].as_str().unwrap()).unwrap();
    let pki = case.cluster.dir.join("pki");
    let script = "base64 -d request >csr && printf 'extendedKeyUsage=clientAuth\nkeyUsage=digitalSignature\n' >ext && \
        openssl x509 -req -in csr -CA \"$PKI/ca.crt\" -CAkey \"$PKI/ca.key\" -set_serial 77 -days 30 -extfile ext 2>/dev/null | base64 -w0";
    let mut command = Command::new("bash");
    let signed = run(command.args(["-o", "pipefail", "-c", script]).current_dir(&dir.dir).env("PKI", pki)).unwrap();
    request["status"]["certificate"] = json!(signed);
    case.ask("PUT", &format!("{REQUESTS}/{name}/status"), Some(&request));
}

/// A certificate that ends while it is in use, and is replaced later.
pub fn expired(case: &Case) {
    let dir = CredentialDir::new(case);
    let end = dir.rotate(&node(case), &["system:nodes"], Duration::from_secs(40));
    let supervisor = case.launch("4s", &case.dir(), args(case, &dir.at("kubeconfig")));
    supervisor.await_ready();
    let mut map = case.good(&case.id("map"), "maxPods: 43");
    case.prove(&map);
    #[allow(clippy::cast_precision_loss)]
    supervisor.await_metric("kubelet_supervisor_client_certificate_expiration_timestamp_seconds", "", end as f64);
    let before = supervisor.process();
    supervisor.await_log(&format!("current.pem in {} expired at ", dir.at("kubeconfig").display()));
    supervisor.await_log("does not accept the credentials of ");
    for label in ["one", "two"] {
        map = relabel(case, &map, label);
    }
    pause(3000); // nothing comes of it
    assert_eq!(supervisor.process(), before);
    dir.rotate(&node(case), &["system:nodes"], HOURS);
    case.await_proven(&map);
    assert_eq!(supervisor.process(), before, "nothing of this is a reason to touch the kubelet");
    case.await_event("KubeletConfigAdopted", &[&format!("ResourceVersion: {}", map.version)]);
}
