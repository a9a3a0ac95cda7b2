//! Seed of the fuzz target of objects: the seed has an object of each kind, and all of them can be read and translated.

use super::super::objects::{Kind, Objects};
use super::super::settings::IngressSettings;
use super::super::translate::Refused;
use super::super::translate::settle::translate;
use super::settings;

#[test]
fn the_seed_of_the_fuzz_target_has_an_object_of_each_kind() {
    let seed = include_str!("../../../../../fuzz/seeds/kubernetes_watch/gateways");
    let mut objects = Objects::default();
    for section in seed.split('#').skip(1) {
        let mut lines = section.lines();
        let name = lines.next().unwrap();
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let page: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        for object in page["items"].as_array().unwrap() {
            objects.put(kind.unwrap(), object.clone()).unwrap();
        }
    }
    for kind in Kind::ALL {
        assert!(objects.count(kind) > 0, "{kind:?}");
    }
    let mut settings = settings();
    // The gateway asks for this address.
    settings.publish = vec!["192.0.2.1".into()];
    settings.ingress = Some(IngressSettings {
        controller: "evenkeel.org/ingress".into(),
        class: None,
        without_class: true,
        certificate: None,
        copy_fields: Vec::new(),
        gateway: IngressSettings::make_gateway(80, 443),
    });
    let translation = translate(&objects, &settings, &Refused::new());
    let config = translation.config.unwrap();
    // Listeners for HTTP, TCP, UDP and TLS serve; the certificate is broken.
    assert!(config.rules.len() >= 4, "{}", translation.text);
    assert!(
        config
            .rules
            .iter()
            .any(|rule| rule.routes.list().len() >= 4)
    );
}
