//! Results of commands, on standard output.

use crate::failure::Failure;

/// Prints a result. A reader that closes the pipe before the end is no failure.
pub(crate) fn print(text: String) -> Result<(), Failure> {
    evenkeel_command::print_result(text).map_err(Failure::new)
}
