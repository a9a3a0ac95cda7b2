//! Verdicts on datagrams and readings.

use evenkeel_kernel::query::BadDatagram;
use evenkeel_kernel::record::BadRecord;
use strum::VariantArray;

/// Verdict on a datagram or a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Verdict {
    /// The record is news.
    Taken,
    /// Something newer is known already; or a page has not changed.
    Old,
    /// The answer is one that nobody waits for: a second answer, far too late, or made up.
    Unasked,
    /// The datagram comes from somewhere else than was asked.
    Foreign,
    /// The datagram or record is of another version.
    Version,
    /// The datagram is none of the protocol, or has a wrong length.
    Malformed,
    /// The datagram is not authentic.
    Mac,
    /// The record was being written.
    Torn,
    /// The record says of itself what cannot be, or is not what was asked for.
    Record,
    /// There is nothing to read: no such page, no connection.
    Unreadable,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name that metrics use.
    pub fn name(self) -> &'static str {
        self.into()
    }

    pub(super) fn of(error: BadDatagram) -> Verdict {
        match error {
            BadDatagram::Version(_) => Verdict::Version,
            BadDatagram::Mac => Verdict::Mac,
            BadDatagram::Record(error) => Verdict::of_record(error),
            BadDatagram::Magic | BadDatagram::Length(_) | BadDatagram::Field(_) => {
                Verdict::Malformed
            }
        }
    }

    /// Returns the verdict on a bad record.
    pub fn of_record(error: BadRecord) -> Verdict {
        match error {
            BadRecord::Version(_) => Verdict::Version,
            BadRecord::Torn => Verdict::Torn,
            _ => Verdict::Record,
        }
    }
}
