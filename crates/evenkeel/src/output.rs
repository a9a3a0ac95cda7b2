//! Results of commands, on standard output.

use std::net::IpAddr;

use crate::failure::Failure;

/// Prints a result. A reader that closes the pipe before the end is no failure.
pub(crate) fn print(text: String) -> Result<(), Failure> {
    evenkeel_command::print_result(text).map_err(Failure::new)
}

/// Returns addresses with commas between them.
pub(crate) fn join_addresses<'a>(addresses: impl IntoIterator<Item = &'a IpAddr>) -> String {
    let texts: Vec<_> = addresses.into_iter().map(IpAddr::to_string).collect();
    texts.join(", ")
}
