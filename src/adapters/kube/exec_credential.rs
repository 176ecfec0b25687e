//! An exec credential plugin (`users[].user.exec`): run once for each client, with an end.
//!
//! kube would run it itself, three times for each client, on a thread of its own, and wait for it for ever.
//! Upstream: client-go plugin/pkg/client/auth/exec/exec.go, v1.22.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use kube::config::ExecConfig;
use serde::Deserialize;
use serde_json::json;

use crate::adapters::process::{self, HelperOutput};
use crate::machine::model::Exit;
use kubelet_config::yaml;

/// What asks a metadata service with retries takes ten seconds at times; client-go waits for ever.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Characters of its stderr in an error.
const MESSAGE_LIMIT: usize = 300;

/// What it gave.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// A bearer token.
    pub(crate) token: Option<String>,
    /// A client certificate with what else is in its chain, and its key; PEM.
    pub(crate) pair: Option<(Vec<u8>, Vec<u8>)>,
    /// When they are to be replaced.
    pub(crate) expires: Option<Timestamp>,
}

/// No secrets.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("expires", &self.expires).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: Option<String>,
    kind: Option<String>,
    status: Option<ExecCredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

/// Runs it. Errors never hold anything of its standard output: that is where the credentials are.
pub(crate) async fn run(exec: &ExecConfig) -> Result<Credentials, String> {
    let command = exec.command.clone().filter(|command| !command.is_empty()).ok_or("its exec has no command")?;
    let at = |why: String| format!("the credential plugin {command} {why}");
    let output =
        process::run_helper(Path::new(&command), exec.args.as_deref().unwrap_or_default(), &env(exec), PLUGIN_TIMEOUT)
            .await
            .map_err(|error| {
                let hint =
                    exec.install_hint.as_deref().map(|hint| format!(" ({})", last_line(hint))).unwrap_or_default();
                at(format!("cannot be run: {error}{hint}"))
            })?;
    checked_stdout(&output).and_then(|text| parse_credential(&text, exec.api_version.as_deref())).map_err(at)
}

fn env(exec: &ExecConfig) -> Vec<(String, String)> {
    let mut spec = json!({ "interactive": false });
    if let (Some(cluster), Some(spec)) = (&exec.cluster, spec.as_object_mut()) {
        spec.insert("cluster".to_owned(), json!(cluster));
    }
    let info = json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec });
    let pair =
        |env: &std::collections::HashMap<String, String>| Some((env.get("name")?.clone(), env.get("value")?.clone()));
    let own = exec.env.iter().flatten().filter_map(pair);
    own.chain([("KUBERNETES_EXEC_INFO".to_owned(), info.to_string())]).collect()
}

fn checked_stdout(output: &HelperOutput) -> Result<String, String> {
    let message = match last_line(&String::from_utf8_lossy(&output.stderr)) {
        message if message.is_empty() => String::new(),
        message => format!(": {message}"),
    };
    match output.exit {
        None => return Err(format!("did not end within {} s and was killed", PLUGIN_TIMEOUT.as_secs())),
        Some(Exit::Code(0)) => {}
        Some(Exit::Code(code)) => return Err(format!("failed with exit code {code}{message}")),
        Some(Exit::Signal(signal)) => return Err(format!("was ended by signal {signal}{message}")),
    }
    String::from_utf8(output.stdout.clone()).map_err(|_| "printed something that is not text".to_owned())
}

fn last_line(text: &str) -> String {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(MESSAGE_LIMIT).collect()
}

fn parse_credential(text: &str, api_version: Option<&str>) -> Result<Credentials, String> {
    let not_a_credential = || format!("printed {} bytes that are no ExecCredential", text.len());
    // YAML, which client-go takes too, holds JSON.
    let value = yaml::parse(text).map_err(|_| not_a_credential())?.value;
    let credential: ExecCredential = serde_json::from_value(value).map_err(|_| not_a_credential())?;
    if credential.kind.as_deref() != Some("ExecCredential") {
        return Err(not_a_credential());
    }
    if credential.api_version.as_deref() != api_version {
        let name = |version: Option<&str>| version.unwrap_or("none").chars().take(64).collect::<String>();
        let (given, asked) = (name(credential.api_version.as_deref()), name(api_version));
        return Err(format!("printed an ExecCredential of version {given}; the kubeconfig asks for {asked}"));
    }
    let status = credential.status.ok_or("printed an ExecCredential without status")?;
    let filled = |field: Option<String>| field.filter(|text| !text.is_empty());
    let expires = match filled(status.expiration_timestamp) {
        None => None,
        Some(time) => Some(time.parse().map_err(|_| "printed an expirationTimestamp that is no time".to_owned())?),
    };
    let pair = match (filled(status.client_certificate_data), filled(status.client_key_data)) {
        (Some(certificate), Some(key)) => Some((certificate.into_bytes(), key.into_bytes())),
        (None, None) => None,
        _ => return Err("printed only one of clientCertificateData and clientKeyData".to_owned()),
    };
    let token = filled(status.token);
    if token.is_none() && pair.is_none() {
        return Err("printed neither token nor certificate".to_owned());
    }
    Ok(Credentials { token, pair, expires })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const V1: &str = "client.authentication.k8s.io/v1";

    fn parsed(status: &Value) -> Result<Credentials, String> {
        let text = json!({"apiVersion": V1, "kind": "ExecCredential", "status": status}).to_string();
        parse_credential(&text, Some(V1))
    }

    #[test]
    fn what_plugins_print() {
        let credentials = parsed(&json!({"token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z"})).unwrap();
        assert_eq!(
            (credentials.token.as_deref(), credentials.expires.unwrap().as_second()),
            (Some("t"), 1_767_225_600)
        );
        let credentials = parsed(&json!({"clientCertificateData": "c", "clientKeyData": "k"})).unwrap();
        assert_eq!(credentials.pair.unwrap(), (b"c".to_vec(), b"k".to_vec()));
        let yaml = format!("apiVersion: {V1}\nkind: ExecCredential\nstatus: {{token: t}}\n");
        assert_eq!(parse_credential(&yaml, Some(V1)).unwrap().token.as_deref(), Some("t"));
    }

    #[test]
    fn what_they_should_not_print_is_named_and_never_shown() {
        for (text, message) in [
            ("", "printed 0 bytes that are no ExecCredential"),
            ("SECRET", "no ExecCredential"),
            ("{SECRET", "no ExecCredential"),
            (r#"{"kind": "SECRET"}"#, "no ExecCredential"),
            (r#"{"kind": "ExecCredential", "apiVersion": "v0", "status": {"token": "SECRET"}}"#, "of version v0; the"),
        ] {
            let why = parse_credential(text, Some(V1)).unwrap_err();
            assert!(why.contains(message) && !why.contains("SECRET"), "{why}");
        }
        for (status, message) in [
            (Value::Null, "without status"),
            (json!({}), "neither token nor certificate"),
            (json!({"token": ""}), "neither token nor certificate"),
            (json!({"clientKeyData": "SECRET"}), "only one of"),
            (json!({"token": "SECRET", "expirationTimestamp": "SECRET"}), "no time"),
        ] {
            let why = parsed(&status).unwrap_err();
            assert!(why.contains(message) && !why.contains("SECRET"), "{why}");
        }
    }

    #[test]
    fn how_it_ends() {
        let output = |exit, stderr: &str| HelperOutput { exit, stdout: b"SECRET".to_vec(), stderr: stderr.into() };
        assert!(checked_stdout(&output(None, "x")).unwrap_err().contains("did not end within 30 s"));
        let why = checked_stdout(&output(Some(Exit::Code(3)), "one\ntwo\n\n")).unwrap_err();
        assert_eq!(why, "failed with exit code 3: two");
        assert_eq!(checked_stdout(&output(Some(Exit::Signal(9)), "")).unwrap_err(), "was ended by signal 9");
        assert_eq!(checked_stdout(&output(Some(Exit::Code(0)), "warning")).unwrap(), "SECRET");
    }
}
