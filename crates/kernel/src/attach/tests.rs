use proptest::prelude::*;

use super::*;

#[test]
fn networks_are_read_and_written() {
    for (text, written) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("192.0.2.7", "192.0.2.7/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("::1", "::1/128"),
        ("::/0", "::/0"),
    ] {
        let network: Network = text.parse().unwrap();
        assert_eq!(network.to_string(), written);
        assert_eq!(Network::from_prefix(&network.prefix()), Some(network));
    }
    for text in [
        "",
        "10.0.0.0/33",
        "::/129",
        "10.0.0/8",
        "a/8",
        "10.0.0.0/",
        "1.2.3.4/-1",
    ] {
        assert!(text.parse::<Network>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn a_configuration_is_read_as_it_was_written(
        words in any::<[u32; 4]>(), made_qdisc: bool, port: u16, longs in any::<[u64; 4]>(),
        ports in proptest::collection::vec(any::<u16>(), 0..=PORTS),
    ) {
        let [mode, interface, priority, handle] = words;
        let [interval_ns, burst_ns, namespace, updates] = longs;
        let config = Config {
            mode, interface, made_qdisc, priority, handle, port, ports,
            interval_ns, burst_ns, namespace, updates,
        };
        prop_assert_eq!(Config::read(&config.write()), Some(config));
    }
}

#[test]
fn a_configuration_of_another_version_is_none() {
    assert_eq!(Config::read(&[7; CONFIG]), None);
    assert_eq!(Config::read(&[0; CONFIG - 8]), None);
}
