//! Parts of a command line that both programs have (`evenkeel` and `evenkeel-lab`): printed results, a progress
//! bar, completions and manual pages, formats of access logs. Errors are messages for the user.

#![forbid(unsafe_code)]

use std::io::{self, Write};

mod access_format;
mod bar;
pub mod pages;

pub use access_format::AccessFormat;
pub use bar::Bar;

/// Prints a result. A reader that closes the pipe before the end is no failure.
pub fn print_result(text: String) -> Result<(), String> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}
