//! A program in a terminal of its own.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::balancer::evenkeel_binary;
use crate::process::program;
use crate::wait_until;

/// A running `evenkeel` command, killed when dropped.
pub struct Terminal {
    process: Child,
    keyboard: File,
    screen: Arc<Mutex<Screen>>,
}

impl Terminal {
    /// Starts `evenkeel` with these arguments in a terminal of that size.
    pub fn start(arguments: &[&str], columns: u16, rows: u16) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let ours = ours.expect("a pseudo-terminal");
        grantpt(&ours).expect("its rights");
        unlockpt(&ours).expect("its lock");
        let name = ptsname(&ours, Vec::new()).expect("its name").into_bytes();
        let mut open = OpenOptions::new();
        // The tests keep the terminal that they have.
        let flags = i32::try_from(OFlags::NOCTTY.bits()).expect("a flag");
        open.read(true).write(true).custom_flags(flags);
        let theirs = open.open(std::ffi::OsString::from_vec(name));
        let theirs = theirs.expect("the other end");
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&theirs, size).expect("its size");
        let end = || theirs.try_clone().expect("another descriptor");
        let mut command = program("setsid");
        command.arg("--ctty").arg(evenkeel_binary()).args(arguments);
        command.stdin(end()).stdout(end()).stderr(end());
        let process = command.spawn().expect("it starts");
        let keyboard = File::from(ours);
        let mut output = keyboard.try_clone().expect("another descriptor");
        let screen = Arc::new(Mutex::new(Screen::new(columns, rows)));
        let shown = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error is the end: nobody has the other end any more.
            while let Ok(len @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("no panic").take(&bytes[..len]);
            }
        });
        Self {
            process,
            keyboard,
            screen,
        }
    }

    /// Types keys.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("it reads");
    }

    /// The lines on the screen.
    pub fn lines(&self) -> Vec<String> {
        let screen = self.screen.lock().expect("no panic");
        let line = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
        screen.lines.iter().map(line).collect()
    }

    /// Waits until the screen shows a text.
    pub fn wait_for(&self, text: &str) {
        wait_until(&format!("the screen shows {text:?}"), || {
            self.lines().iter().any(|line| line.contains(text))
        });
    }

    /// Waits until it ends by itself.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("it ends", || {
            ended = self.process.try_wait().expect("its state");
            ended.is_some()
        });
        ended.expect("it has ended")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            eprintln!("the screen:\n{}", self.lines().join("\n"));
        }
    }
}

/// Screen of a terminal: as much of one as the views need.
struct Screen {
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// The beginning of a character or of a control sequence.
    rest: Vec<u8>,
}

impl Screen {
    fn new(columns: u16, rows: u16) -> Self {
        Self {
            lines: vec![vec![' '; columns.into()]; rows.into()],
            row: 0,
            column: 0,
            rest: Vec::new(),
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let rest = self.rest.split_off(whole);
        let text = String::from_utf8(std::mem::replace(&mut self.rest, rest));
        let text = text.expect("it was looked at");
        let mut left = text.as_str();
        while let Some(char) = left.chars().next() {
            let len = match (char, left.strip_prefix("\u{1b}[")) {
                (_, Some(sequence)) => {
                    let is_last = |byte: u8| (b'@'..=b'~').contains(&byte);
                    let Some(end) = sequence.bytes().position(is_last) else {
                        break;
                    };
                    self.control(&sequence[..end], sequence.as_bytes()[end]);
                    end + 3
                }
                ('\u{1b}', None) if left.len() == 1 => break,
                ('\u{1b}', None) => 2,
                ('\r', _) => {
                    self.column = 0;
                    1
                }
                ('\n', _) => {
                    self.row += 1;
                    1
                }
                (char, _) => {
                    let line = self.lines.get_mut(self.row);
                    if let Some(cell) = line.and_then(|line| line.get_mut(self.column)) {
                        *cell = char;
                    }
                    self.column += 1;
                    char.len_utf8()
                }
            };
            left = &left[len..];
        }
        self.rest.splice(0..0, left.bytes());
    }

    fn control(&mut self, parameters: &str, which: u8) {
        match which {
            b'H' => {
                let mut numbers = parameters.split(';').map(|text| text.parse().unwrap_or(1));
                let mut next = || numbers.next().unwrap_or(1_usize).saturating_sub(1);
                (self.row, self.column) = (next(), next());
            }
            b'J' => self.lines.iter_mut().for_each(|line| line.fill(' ')),
            // Colours and modes.
            _ => {}
        }
    }
}
