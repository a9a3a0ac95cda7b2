//! Any bytes as pages and events of an API server of Kubernetes, as a kubeconfig file, and as a copy of a cluster: no panic,
//! members within their bounds, and gateways whose configuration can be read.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use evenkeel_config::{IpFamily, PortName, parse_generated};
use evenkeel_kubernetes::copy::Copy;
use evenkeel_kubernetes::endpoints::{Choice, MAX_MEMBERS};
use evenkeel_kubernetes::gateway::objects::Kind;
use evenkeel_kubernetes::gateway::settings::{IngressSettings, Settings};
use evenkeel_kubernetes::gateway::translate::Refused;
use evenkeel_kubernetes::gateway::translate::settle::translate;
use evenkeel_kubernetes::gateway::world::{KindStore, World};
use evenkeel_kubernetes::kubeconfig::parse_kubeconfig;
use evenkeel_kubernetes::list::Store;
use evenkeel_kubernetes::slices::{ServiceName, SharedSlices};
use evenkeel_kubernetes::watcher::Watcher;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let name: ServiceName = ("default".into(), "web".into());
    read_objects(SharedSlices::of_services([name.clone()]), &name, bytes);
    read_objects(SharedSlices::of_pods(name.clone()), &name, bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = parse_kubeconfig(text, Path::new("/"), None);
        let _ = Copy::parse(text);
    }
    read_cluster(bytes);
});

/// Reads bytes as a list, which is the first line, and a watch.
fn read_answers<S: Store>(watcher: &mut Watcher<S>, bytes: &[u8]) {
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
}

/// Reads bytes as objects of all kinds that the controller of the Gateway API follows: sections that begin with `#`, each
/// with the name of a kind in its first line, and translates the objects.
fn read_cluster(bytes: &[u8]) {
    let settings = Settings {
        controller: "evenkeel.org/gateway".into(),
        class: None,
        listen: vec![[0, 0, 0, 0].into()],
        publish: vec!["192.0.2.1".into()],
        publish_service: None,
        pool: Vec::new(),
        ingress: Some(IngressSettings {
            controller: "evenkeel.org/ingress".into(),
            class: None,
            without_class: true,
            certificate: None,
            copy_fields: Vec::new(),
            gateway: IngressSettings::make_gateway(80, 443),
        }),
    };
    let world = Arc::new(World::new(&settings));
    for section in bytes.split(|&byte| byte == b'#') {
        let end = section.iter().position(|&byte| byte == b'\n');
        let (name, answers) = section.split_at(end.unwrap_or(0));
        let named = Kind::ALL.into_iter().find(|kind| kind.name().as_bytes() == name);
        let Some(kind) = named else {
            continue;
        };
        let world = Arc::clone(&world);
        let mut watcher = Watcher::with_store(KindStore { kind, world });
        read_answers(&mut watcher, answers.get(1..).unwrap_or_default());
    }
    for kind in Kind::ALL {
        world.note_listed(kind, "v1");
    }
    let Some(objects) = world.objects() else {
        return;
    };
    let translation = translate(&objects, &settings, &Refused::new());
    if translation.config.is_ok() {
        assert!(parse_generated(&translation.text).is_ok());
    }
}

/// Reads bytes as answers about slices, or about pods.
fn read_objects(slices: SharedSlices, name: &ServiceName, bytes: &[u8]) {
    let mut watcher = Watcher::with_store(slices.clone());
    slices.lock().begin_list();
    read_answers(&mut watcher, bytes);
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
