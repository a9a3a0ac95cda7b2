//! Errors of a configuration, with their places.

use std::fmt;

/// Message about a value of another type than its key takes.
pub(crate) const WRONG_TYPE: &str = "wrong type";

/// Everything that is wrong with a configuration file: at least one [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors {
    /// The file as it was named by the caller.
    pub file: String,
    /// The problems, in the order of the file.
    pub problems: Vec<Problem>,
    /// Number of further problems that were found but not kept.
    pub omitted: usize,
}

impl Errors {
    /// Most problems that are kept; further ones are counted.
    pub const MAX_PROBLEMS: usize = 100;

    /// A problem with the file as a whole.
    pub(crate) fn of_file(file: String, message: String) -> Self {
        Errors {
            file: file.clone(),
            problems: vec![Problem::of_file(file, message)],
            omitted: 0,
        }
    }
}

impl std::error::Error for Errors {}

/// Errors as text, with one line for each problem.
impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            problem.fmt(f)?;
        }
        if self.omitted > 0 {
            write!(f, "\n{}: and {} more problems", self.file, self.omitted)?;
        }
        Ok(())
    }
}

/// Single error of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file as it was named by the caller.
    pub file: String,
    /// Line, from 1; 0 if it is about the file as a whole.
    pub line: usize,
    /// Column in characters, from 1; 0 if it is about the file as a whole.
    pub column: usize,
    /// Path of the key ("rule.web.members[1].weight"); empty for a syntax error.
    pub key: String,
    /// Description of the problem.
    pub message: String,
    /// Value that was found, as it stands in the file; shortened.
    pub found_value: Option<String>,
    /// Values that would be allowed.
    pub allowed: Option<String>,
}

impl Problem {
    /// A problem with the file as a whole.
    pub(crate) fn of_file(file: String, message: String) -> Self {
        Problem {
            file,
            line: 0,
            column: 0,
            key: String::new(),
            message,
            found_value: None,
            allowed: None,
        }
    }
}

/// `file:line:column: key: message; found …; allowed: …`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        } else if !self.file.is_empty() {
            write!(f, "{}: ", self.file)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)?;
        if let Some(found) = &self.found_value {
            write!(f, "; found {found}")?;
        }
        if let Some(allowed) = &self.allowed {
            write!(f, "; allowed: {allowed}")?;
        }
        Ok(())
    }
}

/// Problems in one line, for a log or an answer.
pub fn one_line(problems: &[Problem]) -> String {
    let all: Vec<String> = problems.iter().map(Problem::to_string).collect();
    all.join("; ")
}

/// A place in a configuration file. All places are equal, so that two configurations are equal that
/// say the same in other places.
#[derive(Clone, Debug, Default)]
pub struct SourcePosition {
    /// The file as it was named by the caller.
    pub file: String,
    /// Line, from 1; 0 if it is not from a file.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Path of the key.
    pub key: String,
}

impl PartialEq for SourcePosition {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl SourcePosition {
    /// Something that is wrong with what stands there.
    pub fn problem(&self, message: impl Into<String>) -> Problem {
        let SourcePosition {
            file,
            line,
            column,
            key,
        } = self.clone();
        Problem {
            file,
            line,
            column,
            key,
            message: message.into(),
            found_value: None,
            allowed: None,
        }
    }
}
