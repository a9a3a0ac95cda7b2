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

/// CPUs that keep entries for themselves leave as many as the map must hold: with 4,096 in all,
/// 32 CPUs would leave none.
#[test]
fn s22_every_cpu_may_keep_entries_for_itself() {
    for (_, held) in RECENT {
        for cpus in [1, 2, 32, 128, 512] {
            let all = entries(held, cpus);
            assert!(all - cpus as u32 * 128 >= held);
            assert!(all <= held + (1 << 16), "and memory has a bound");
        }
        assert_eq!(entries(held, usize::MAX), u32::MAX);
    }
    let object = match open(Path::new("/sys/fs/bpf/nowhere")) {
        Ok(object) => object,
        Err(error @ BpfError::NoBtf(_)) => {
            println!("SKIPPED: s22_every_cpu_may_keep_entries_for_itself: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    for (name, held) in RECENT {
        let map = object.maps().find(|map| map.name() == name).unwrap();
        assert_eq!(map.max_entries(), entries(held, cpus), "{name}");
    }
}

#[test]
fn a_configuration_of_another_version_is_none() {
    assert_eq!(Config::read(&[7; CONFIG]), None);
    assert_eq!(Config::read(&[0; CONFIG - 8]), None);
}

/// The kernel may have no memory for a timer at one moment, and have it at the next.
#[test]
fn a_timer_is_asked_for_until_there_is_memory() {
    let mut asked = 0;
    let in_the_end = start(&mut request(0, 0), |_| {
        asked += 1;
        Ok(i32::from(asked < 4))
    });
    assert!(in_the_end.is_ok() && asked == 4, "{asked}");
    let mut asked = 0;
    let never = start(&mut request(0, 0), |_| {
        asked += 1;
        Ok(1)
    });
    assert_eq!(asked, TIMER_TRIES);
    let said = never.unwrap_err().to_string();
    assert!(said.contains("no timer"), "{said}");
}
