//! `evenkeel kernel attach --receive`, `detach --receive` and `status --receive`.

use std::net::IpAddr;

use evenkeel_kernel::receive;

use crate::failure::Failure;
use crate::output::{join_addresses, print};

/// Lets this machine receive packets to the addresses of rules, also by tunnels of these balancers if there are some.
pub(super) fn attach(addresses: &[IpAddr], balancers: &[IpAddr]) -> Result<(), Failure> {
    let all = receive::receive(addresses).map_err(Failure::of)?;
    if balancers.is_empty() {
        tunnels::limit(&all)?;
    } else {
        tunnels::attach(&all, balancers)?;
    }
    print(format!(
        "this machine receives packets to {}, and answers nobody who looks for these addresses in its networks\n",
        join_addresses(&all)
    ))
}

/// Lets this machine receive packets to these addresses no longer.
pub(super) fn detach(addresses: &[IpAddr]) -> Result<(), Failure> {
    let removed = receive::release(addresses).map_err(Failure::of)?;
    tunnels::limit(&receive::list_received().map_err(Failure::of)?)?;
    print(if removed.is_empty() {
        "nothing to remove: this machine receives packets to no address of a rule\n".into()
    } else {
        format!(
            "this machine no longer receives packets to {}\n",
            join_addresses(&removed)
        )
    })
}

/// Shows the tunnels that end at this machine.
pub(super) fn show(is_json: bool) -> Result<(), Failure> {
    tunnels::show(is_json)
}

#[cfg(feature = "bpf")]
mod tunnels {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use evenkeel_kernel::tunnel::{self, PACKETS};

    use crate::failure::Failure;
    use crate::output::{join_addresses, print};

    pub(super) fn attach(
        addresses: &BTreeSet<IpAddr>,
        balancers: &[IpAddr],
    ) -> Result<(), Failure> {
        let balancers = balancers.iter().map(IpAddr::to_canonical).collect();
        let interfaces = tunnel::attach(addresses, &balancers).map_err(Failure::of)?;
        if interfaces == 0 {
            return Err(Failure::new(
                "no Ethernet interface is up, so no tunnel can end here: run the command again when one is",
            ));
        }
        print(format!(
            "tunnels of {} end here\n",
            join_addresses(&balancers)
        ))
    }

    pub(super) fn limit(addresses: &BTreeSet<IpAddr>) -> Result<(), Failure> {
        tunnel::limit(addresses).map_err(Failure::of)
    }

    pub(super) fn show(is_json: bool) -> Result<(), Failure> {
        let status = tunnel::read_status().map_err(Failure::of)?;
        let Some(status) = status else {
            return Err(Failure::new(
                "no tunnel ends at this machine; see `evenkeel kernel attach --receive ADDRESS --balancers ADDRESS`",
            ));
        };
        if is_json {
            return print(format!("{}\n", status.to_json()));
        }
        let mut text = format!(
            "addresses   {}\nbalancers   {}\n",
            join_addresses(&status.addresses),
            join_addresses(&status.balancers)
        );
        for ((name, meaning), count) in PACKETS.iter().zip(status.counts) {
            text += &format!("{name:<11} {count} ({meaning})\n");
        }
        print(text)
    }
}

#[cfg(not(feature = "bpf"))]
mod tunnels {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use crate::failure::Failure;

    pub(super) fn attach(
        _addresses: &BTreeSet<IpAddr>,
        _balancers: &[IpAddr],
    ) -> Result<(), Failure> {
        Err(Failure::new(
            "this evenkeel was built without BPF, so no tunnel can end here; build it with `cargo build --features \
             kernel`",
        ))
    }

    pub(super) fn limit(_addresses: &BTreeSet<IpAddr>) -> Result<(), Failure> {
        Ok(())
    }

    pub(super) fn show(_is_json: bool) -> Result<(), Failure> {
        Err(Failure::new(
            "this evenkeel was built without BPF, so no tunnel ends here",
        ))
    }
}
