//! The stand-in API server as an executable of its own: one Node, and one ConfigMap that is assigned to it as soon as
//! there is FILE, which becomes its key `kubelet`.
//!
//!     stand-in-api-server PORT NODE KUBECONFIG FILE
//!
//! KUBECONFIG is written. It serves until it is killed, and remembers nothing.
// Test support may panic, and its threads hold no process of ours.
#![allow(
    dead_code,
    unused_imports,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

#[path = "mod.rs"]
mod support;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, port, node, kubeconfig, file] = args.as_slice() else {
        panic!("stand-in-api-server PORT NODE KUBECONFIG FILE");
    };
    let server = support::api_server::ApiServer::start_on(port.parse().expect("a port"));
    server.create_node(node);
    server.write_kubeconfig(kubeconfig);
    let payload = loop {
        if let Ok(payload) = std::fs::read_to_string(file) {
            break payload;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    server.put_config_map("kube-system", "pool", &[("kubelet", &payload)]);
    server.assign(node, "kube-system", "pool", "kubelet");
    loop {
        std::thread::park();
    }
}
