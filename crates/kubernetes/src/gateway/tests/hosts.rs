//! Host names of objects, compared with those of the configuration: the controller takes no name that the configuration
//! refuses.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::super::text::{is_exact_host, is_host, quote, write_host};

/// Returns a configuration with a host in each place where the controller writes one.
fn write_config(host: &str) -> String {
    let name = quote(&write_host(host));
    let server_name = match is_exact_host(host) {
        true => {
            format!("member_tls = {{ server_name = {name}, certificate_names = [{name}] }}\n")
        }
        false => String::new(),
    };
    format!(
        "[rule.http]\nlisten = \"192.0.2.1:80\"\ngroup = \"named\"\n\
         [[rule.http.routes]]\nhost = [{name}]\nanswer = {{ status = 404 }}\n\
         [rule.tls]\nlisten = \"192.0.2.1:443\"\nprotocol = \"tcp\"\ngroup = \"g\"\n\
         [rule.tls.sni]\n{name} = \"g\"\n\
         [group.g]\nmembers = [\"192.0.2.8:80\"]\n\
         [group.named]\nmembers = [\"192.0.2.9:80\"]\n{server_name}"
    )
}

fn check_host(host: &str) {
    let text = write_config(host);
    if let Err(error) = evenkeel_config::parse_generated(&text) {
        panic!("{error}\n{text}");
    }
}

/// Texts like host names: with labels and names of all lengths up to the bounds and beyond, and with other characters.
fn host_like() -> impl Strategy<Value = String> {
    let label = prop_oneof![
        6 => "[a-zA-Z0-9]{1,8}",
        3 => "[a-z0-9][a-z0-9-]{58,63}[a-z0-9]",
        1 => "[-_*a-z0-9.:/%\\\\\"\\[\\]é ]{0,6}",
    ];
    let labels = proptest::collection::vec(label, 1..6);
    let front = prop_oneof![4 => Just(""), 4 => Just("*."), 1 => Just("**."), 1 => Just(".")];
    let back = prop_oneof![8 => Just(""), 1 => Just("."), 1 => Just(".7")];
    let parts = (front, labels, back);
    parts.prop_map(|(front, labels, back)| format!("{front}{}{back}", labels.join(".")))
}

#[test]
fn the_configuration_takes_each_host_that_the_controller_takes() {
    let mut runner = TestRunner::new(Config {
        cases: 1_000,
        failure_persistence: None,
        ..Config::default()
    });
    let taken = std::cell::Cell::new(0);
    let run = runner.run(&host_like(), |host| {
        if is_host(&host) {
            taken.set(taken.get() + 1);
            check_host(&host);
        }
        Ok(())
    });
    run.unwrap();
    assert!(taken.get() > 100, "{}", taken.get());
}

#[test]
fn the_longest_hosts_are_taken() {
    let label = "a".repeat(63);
    let below = |first: usize| format!("{}.{label}.{label}.{label}", "b".repeat(first));
    for (host, is) in [
        (below(61), true),
        (below(62), false),
        (format!("*.{}", below(59)), true),
        (format!("*.{}", below(60)), false),
    ] {
        assert_eq!(is_host(&host), is, "{host}");
        if is {
            check_host(&host);
        }
    }
}
