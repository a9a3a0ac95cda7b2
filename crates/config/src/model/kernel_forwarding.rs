//! `[kernel_forwarding]`: how the kernel forwards for rules with `forward = "kernel"`.

use super::rule::{Forward, Rule};
use crate::schema::field::Texts;
use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// Settings of forwarding in the kernel.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct KernelForwarding {}
    keys KERNEL_FORWARDING {
        /// Names of network interfaces at which native XDP forwards packets in the middle of connections, before the
        /// system has looked at them. List the interfaces towards your clients and towards your members. Native XDP
        /// pays for many small packets; large transfers cost more by XDP than by tc, which every interface has. See
        /// [kernel-forwarding.md](kernel-forwarding.md#native-xdp). If an interface cannot do native XDP, tc forwards
        /// there, and `evenkeel ctl status` says why.
        xdp_interfaces: Vec<String> [Text(INTERFACE)] = Vec::new(); r#"["eth0", "eth1"]"#,
        /// If true, the balancers of your [fleet](fleet.md) copy the connections in their kernels to each other. If you
        /// move the address of a rule to another balancer, or if your balancer dies, the other balancer continues the
        /// open connections. Set `true` on all balancers. See
        /// [kernel-forwarding.md](kernel-forwarding.md#active-and-standby).
        copy_to_fleet: bool = false; "true",
        /// If true, strategies that compare members by their times learn from the requests within long connections, and
        /// not from first answers, in groups whose connections carry many requests. This pays where a member becomes
        /// slow while connections are open, and costs where most connections are idle. See
        /// [kernel-forwarding.md](kernel-forwarding.md#requests-within-long-connections). Requests are counted and shown
        /// in any case.
        learn_from_requests: bool = false; "true",
    }
}

const INTERFACE: Texts = (
    "the name of a network interface: 1 to 15 visible ASCII characters without `/` and `:`",
    |text| {
        let is_part = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':');
        (1..=15).contains(&text.len()) && text.bytes().all(is_part) && !matches!(text, "." | "..")
    },
);

/// Reads `[kernel_forwarding]` of the file, if it is there.
pub(crate) fn read(
    top: &mut Table<'_>,
    rules: &[Rule],
    report: &mut Report<'_>,
) -> KernelForwarding {
    let mut forwarding = KernelForwarding::default();
    let has_fleet = top.has_key("fleet");
    if let Some(mut table) = top.read_table("kernel_forwarding", report) {
        table.read(KERNEL_FORWARDING, &mut forwarding, report);
        let is_kernel = |rule: &Rule| rule.forward == Forward::Kernel;
        let has_settings = !forwarding.xdp_interfaces.is_empty()
            || forwarding.copy_to_fleet
            || forwarding.learn_from_requests;
        if has_settings && !rules.iter().any(is_kernel) {
            table.report_warning("has no effect: no rule has `forward = \"kernel\"`", report);
        }
        if forwarding.copy_to_fleet && !has_fleet {
            let what =
                "`copy_to_fleet` has no effect without [fleet]: no other balancer gets copies";
            table.report_warning(what, report);
        }
        table.report_unread(report);
    }
    forwarding
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "Forwarding in the kernel, for all rules with `forward = \"kernel\"`: see \
               [kernel-forwarding.md](kernel-forwarding.md).";
    TableDoc::new(
        "[kernel_forwarding]",
        doc,
        [describe_keys(
            KERNEL_FORWARDING,
            KernelForwarding::default(),
        )],
    )
}

#[cfg(test)]
mod tests {
    use crate::parse;

    const RULE: &str =
        "[rule.db]\nlisten = \"127.0.0.1:1\"\nprotocol = \"tcp\"\nmembers = [\"10.0.0.1:1\"]\n";

    #[test]
    fn interfaces_have_names() {
        let text = format!(
            "{RULE}forward = \"kernel\"\n[kernel_forwarding]\nxdp_interfaces = [\"eth0\", \"br-lan.5\"]\n"
        );
        let config = parse("x", &text).unwrap();
        assert_eq!(config.warnings, []);
        assert_eq!(
            config.kernel_forwarding.xdp_interfaces,
            ["eth0", "br-lan.5"]
        );
        for bad in ["", ".", "..", "a/b", "a b", "a:1", "sixteen-letters-"] {
            let text = format!("[kernel_forwarding]\nxdp_interfaces = [\"{bad}\"]\n");
            let error = parse("x", &text).unwrap_err().to_string();
            assert!(
                error.contains("kernel_forwarding.xdp_interfaces"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_table_means_nothing_without_a_rule_that_the_kernel_forwards() {
        let text = format!("{RULE}[kernel_forwarding]\nxdp_interfaces = [\"eth0\"]\n");
        let warnings = parse("x", &text).unwrap().warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
    }

    #[test]
    fn copies_need_a_fleet() {
        let text =
            format!("{RULE}forward = \"kernel\"\n[kernel_forwarding]\ncopy_to_fleet = true\n");
        let warnings = parse("x", &text).unwrap().warnings;
        assert!(warnings[0].to_string().contains("[fleet]"), "{warnings:?}");
        let fleet = "[fleet]\nlisten = \"127.0.0.1:9910\"\nkey_file = \"k\"\n";
        let config = parse("x", &(text + fleet)).unwrap();
        assert_eq!(config.warnings, []);
        assert!(config.kernel_forwarding.copy_to_fleet);
    }
}
