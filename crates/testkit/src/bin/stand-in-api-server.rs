//! The stand-in API server as an executable of its own: one Node, and one ConfigMap that is assigned to it as soon as
//! there is FILE, which becomes its key `kubelet`.
//!
//!     stand-in-api-server PORT NODE KUBECONFIG FILE
//!
//! KUBECONFIG is written. It serves until it is killed, and remembers nothing.

#![allow(clippy::expect_used, clippy::panic, reason = "for tests alone")]

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, port, node, kubeconfig, file] = args.as_slice() else {
        panic!("stand-in-api-server PORT NODE KUBECONFIG FILE");
    };
    let server = testkit::api_server::ApiServer::start_on(port.parse().expect("a port"));
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
