//! `evenkeel convert`: a configuration of HAProxy or nginx as one of the balancer.

use std::fs::OpenOptions;
use std::io::Write;

use evenkeel_config::read_file;
use evenkeel_convert::{Converted, MAX_BYTES, convert};

use crate::cli::Convert;
use crate::failure::Failure;
use crate::output::print;

/// Prints the translation, or writes it to a file; what was not translated goes to standard error.
pub(crate) fn run(args: &Convert) -> Result<(), Failure> {
    let name = args.file.display();
    let text = read_file(&args.file, MAX_BYTES as u64);
    let text = text.map_err(|why| Failure::new(format!("{name}: {why}")))?;
    let Converted { toml, notes } =
        convert(&text).map_err(|why| Failure::new(format!("{name}: {why}")))?;
    match &args.output {
        Some(output) => {
            let file = OpenOptions::new().write(true).create_new(true).open(output);
            let written = file.and_then(|mut file| file.write_all(toml.as_bytes()));
            written.map_err(|error| {
                Failure::new(format!("{}: cannot be written: {error}", output.display()))
            })?;
        }
        None => print(toml)?,
    }
    for note in &notes {
        eprintln!("{name}: {note}");
    }
    let restricting = notes.iter().filter(|note| note.restricts).count();
    if !notes.is_empty() {
        eprintln!(
            "{} lines of {name} were not translated, or not exactly; {restricting} of them restrict access",
            notes.len()
        );
    }
    Ok(())
}
