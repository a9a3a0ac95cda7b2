//! `evenkeel kernel attach --receive` and `detach --receive`.

use std::net::IpAddr;

use evenkeel_kernel::receive;

use crate::failure::Failure;
use crate::output::print;

fn join<'a>(addresses: impl IntoIterator<Item = &'a IpAddr>) -> String {
    let texts: Vec<_> = addresses.into_iter().map(IpAddr::to_string).collect();
    texts.join(", ")
}

/// Lets this machine receive packets to the addresses of rules.
pub(super) fn attach(addresses: &[IpAddr]) -> Result<(), Failure> {
    let all = receive::receive(addresses).map_err(Failure::of)?;
    print(format!(
        "this machine receives packets to {}, and answers nobody who looks for these addresses in its networks\n",
        join(&all)
    ))
}

/// Lets this machine receive packets to these addresses no longer.
pub(super) fn detach(addresses: &[IpAddr]) -> Result<(), Failure> {
    let removed = receive::release(addresses).map_err(Failure::of)?;
    print(if removed.is_empty() {
        "nothing to remove: this machine receives packets to no address of a rule\n".into()
    } else {
        format!(
            "this machine no longer receives packets to {}\n",
            join(&removed)
        )
    })
}
