//! The CRD in `packaging/manifests/pools` is what the types say. `UPDATE_SNAPSHOTS=1` writes it anew.

use std::path::Path;

use serde_json::{Value, json};

fn shipped() -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/manifests/pools/crd.yaml");
    let crd = kubectl_plugin::crd();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        let text = serde_yaml::to_string(&crd).unwrap();
        std::fs::write(
            &file,
            format!("# Of the types in crates/kubectl-plugin/src/fleet/pool/types.rs; a test keeps it so.\n{text}"),
        )
        .unwrap();
    }
    let shipped: Value = serde_yaml::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(shipped, crd, "UPDATE_SNAPSHOTS=1 renews it");
    shipped
}

#[test]
fn the_shipped_crd_is_what_the_types_say() {
    let crd = shipped();
    assert_eq!(crd["metadata"]["name"], "kubeletconfigpools.kubelet-supervisor.io");
    assert_eq!(crd["spec"]["scope"], "Cluster");
    let version = &crd["spec"]["versions"][0];
    assert_eq!(version["subresources"], json!({"status": {}}));
    let schema = &version["schema"]["openAPIV3Schema"]["properties"];
    // kstatus takes an object without a status for one that is done.
    assert_eq!(schema["status"]["default"], json!({"observedGeneration": -1}));
    assert_eq!(schema["spec"]["properties"]["kubeletConfiguration"]["x-kubernetes-preserve-unknown-fields"], true);
    assert_eq!(schema["spec"]["properties"]["rollout"]["properties"]["canaries"]["default"], 1);
}

#[test]
fn every_field_says_what_it_is() {
    fn check(path: &str, schema: &Value) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            assert!(field["description"].is_string(), "{path}");
            // API server 1.20.2, as built here, takes an empty string for null, and refuses the CRD.
            assert_ne!(field["default"], "", "{path}");
            check(&path, field);
            check(&path, &field["items"]);
        }
    }
    let crd = shipped();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    check("spec", &schema["spec"]);
    check("status", &schema["status"]);
}
