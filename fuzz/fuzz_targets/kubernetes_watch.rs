//! Any bytes as pages and events of an API server of Kubernetes, and as a kubeconfig file: no panic, and members within
//! their bounds.
#![no_main]

use std::path::Path;

use evenkeel_config::{IpFamily, PortName};
use evenkeel_kubernetes::endpoints::{Choice, MAX_MEMBERS};
use evenkeel_kubernetes::kubeconfig::parse_kubeconfig;
use evenkeel_kubernetes::slices::{ServiceName, SharedSlices};
use evenkeel_kubernetes::watcher::Watcher;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let name: ServiceName = ("default".into(), "web".into());
    read_objects(SharedSlices::of_services([name.clone()]), &name, bytes);
    read_objects(SharedSlices::of_pods(name.clone()), &name, bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = parse_kubeconfig(text, Path::new("/"), None);
    }
});

/// Reads bytes as answers about slices, or about pods.
fn read_objects(slices: SharedSlices, name: &ServiceName, bytes: &[u8]) {
    let mut watcher = Watcher::with_store(slices.clone());
    slices.lock().begin_list();
    // The first line is a page of the list; what follows is a watch.
    let (page, watch) = match bytes.iter().position(|&byte| byte == b'\n') {
        Some(end) => bytes.split_at(end),
        None => (bytes, &[][..]),
    };
    let _ = watcher.take_page(page);
    for part in watch.chunks(64) {
        let mut fault = None;
        watcher.take_bytes(part, &mut fault);
    }
    watcher.next_question();
    for port in [PortName::Name("http".into()), PortName::Number(80)] {
        let choice = Choice {
            port: &port,
            service_ports: &[],
            prefer: IpFamily::Ipv4,
            own_zone: Some("a"),
        };
        let slices = slices.lock();
        if let Ok(members) = choice.choose_members(slices.slices_of(name).into_iter().flatten()) {
            assert!(members.len() <= MAX_MEMBERS);
            assert!(members.iter().all(|member| member.address.port() > 0));
        }
    }
}
