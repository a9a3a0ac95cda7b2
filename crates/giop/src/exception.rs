//! System and user exceptions, as they stand in the bodies of replies.

use std::fmt;

use crate::cdr::{CdrError, Reader, Writer};

/// Base of the minor codes that the OMG has assigned.
pub const OMG_MINOR: u32 = 0x4f4d_0000;

/// Completion status: was the operation carried out when its exception was raised?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Completion {
    /// The operation was carried out.
    Yes,
    /// The operation was not carried out: the request may be sent again, elsewhere too.
    No,
    /// Nobody knows.
    Maybe,
}

/// An exception that any operation can raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SystemException {
    /// Kind of the exception.
    pub kind: Kind,
    /// Number that tells apart causes; meaningful together with its vendor's base ([`OMG_MINOR`]).
    pub minor: u32,
    /// Completion status of the operation.
    pub completed: Completion,
}

macro_rules! kinds {
    ($($kind:ident $name:literal $doc:literal;)*) => {
        /// The standard system exceptions (CORBA 3.3, part 1, 8.5.4).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $(#[doc = $doc] $kind,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind),*];

            /// Returns the name of the exception in IDL: `TRANSIENT`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }

            /// Returns the repository id of the exception: `IDL:omg.org/CORBA/TRANSIENT:1.0`.
            pub fn repository_id(self) -> &'static str {
                match self {
                    $(Kind::$kind => concat!("IDL:omg.org/CORBA/", $name, ":1.0"),)*
                }
            }
        }
    };
}

kinds! {
    Unknown "UNKNOWN" "An exception that is none of these.";
    BadParam "BAD_PARAM" "A parameter that is not valid.";
    NoMemory "NO_MEMORY" "Memory is exhausted.";
    ImpLimit "IMP_LIMIT" "A limit of the implementation is exceeded.";
    CommFailure "COMM_FAILURE" "The connection failed while the operation was in progress.";
    InvObjref "INV_OBJREF" "A reference that is malformed.";
    NoPermission "NO_PERMISSION" "The caller may not do this.";
    Internal "INTERNAL" "A bug of the ORB.";
    Marshal "MARSHAL" "A request or reply that cannot be read.";
    Initialize "INITIALIZE" "The ORB could not be initialised.";
    NoImplement "NO_IMPLEMENT" "The operation is known, but not implemented.";
    BadTypecode "BAD_TYPECODE" "A TypeCode that is malformed.";
    BadOperation "BAD_OPERATION" "The object has no such operation.";
    NoResources "NO_RESOURCES" "Something else than memory is exhausted.";
    NoResponse "NO_RESPONSE" "A deferred reply is not there yet.";
    PersistStore "PERSIST_STORE" "A persistent store failed.";
    BadInvOrder "BAD_INV_ORDER" "Operations were called in the wrong order.";
    Transient "TRANSIENT" "The object could not be reached; another try may succeed.";
    FreeMem "FREE_MEM" "Memory could not be freed.";
    InvIdent "INV_IDENT" "An identifier that is not valid.";
    InvFlag "INV_FLAG" "A flag that is not valid.";
    IntfRepos "INTF_REPOS" "The interface repository failed.";
    BadContext "BAD_CONTEXT" "A context object could not be handled.";
    ObjAdapter "OBJ_ADAPTER" "The object adapter failed.";
    DataConversion "DATA_CONVERSION" "A value could not be converted.";
    ObjectNotExist "OBJECT_NOT_EXIST" "The object is gone for good: the reference is useless.";
    TransactionRequired "TRANSACTION_REQUIRED" "There is no transaction, but must be.";
    TransactionRolledback "TRANSACTION_ROLLEDBACK" "The transaction was rolled back.";
    InvalidTransaction "INVALID_TRANSACTION" "A transaction context that is not valid.";
    InvPolicy "INV_POLICY" "Policies that contradict each other.";
    CodesetIncompatible "CODESET_INCOMPATIBLE" "No code set that both sides know.";
    Rebind "REBIND" "A forward that the client's policies forbid.";
    Timeout "TIMEOUT" "The time for the operation is up.";
    TransactionUnavailable "TRANSACTION_UNAVAILABLE" "The transaction service is out of reach.";
    TransactionMode "TRANSACTION_MODE" "Transaction policies of both sides do not match.";
    BadQos "BAD_QOS" "A quality of service that cannot be had.";
    InvalidActivity "INVALID_ACTIVITY" "An activity context that is not valid.";
    ActivityCompleted "ACTIVITY_COMPLETED" "The activity has ended.";
    ActivityRequired "ACTIVITY_REQUIRED" "There is no activity, but must be.";
    ThreadCancelled "THREAD_CANCELLED" "The thread that carried it out was cancelled.";
}

impl Kind {
    /// The kind with that repository id.
    pub fn from_repository_id(repository_id: &str) -> Option<Kind> {
        let name = repository_id
            .strip_prefix("IDL:omg.org/CORBA/")?
            .strip_suffix(":1.0")?;
        Kind::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

impl SystemException {
    /// An exception before the operation was carried out, with minor code 0.
    pub fn new(kind: Kind) -> Self {
        SystemException {
            kind,
            minor: 0,
            completed: Completion::No,
        }
    }

    /// Returns this exception with that minor code.
    pub fn with_minor(self, minor: u32) -> Self {
        SystemException { minor, ..self }
    }

    /// Returns this exception with that completion status.
    pub fn with_completion(self, completed: Completion) -> Self {
        SystemException { completed, ..self }
    }

    /// Reads the body of a reply with status SYSTEM_EXCEPTION. An exception that is not of the
    /// standard is [`Kind::Unknown`].
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, CdrError> {
        let id = reader.read_string("repository id of an exception")?;
        let kind = Kind::from_repository_id(&id).unwrap_or(Kind::Unknown);
        let minor = reader.read_u32()?;
        let at = reader.position();
        let completed = match reader.read_u32()? {
            0 => Completion::Yes,
            1 => Completion::No,
            2 => Completion::Maybe,
            other => {
                return Err(CdrError::Invalid {
                    what: "completion status",
                    at,
                    found: other.to_string(),
                });
            }
        };
        Ok(SystemException {
            kind,
            minor,
            completed,
        })
    }

    /// Writes the body of a reply. Nothing in it is aligned to more than 4.
    pub fn write(&self, writer: &mut Writer) {
        writer.write_string(self.kind.repository_id());
        writer.write_u32(self.minor);
        writer.write_u32(match self.completed {
            Completion::Yes => 0,
            Completion::No => 1,
            Completion::Maybe => 2,
        });
    }
}

impl fmt::Display for SystemException {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let completed = match self.completed {
            Completion::Yes => "YES",
            Completion::No => "NO",
            Completion::Maybe => "MAYBE",
        };
        let name = self.kind.name();
        write!(f, "CORBA::{name} (minor ")?;
        match self.minor {
            0..=0xffff => write!(f, "{}", self.minor),
            minor => write!(f, "{minor:#010x}"),
        }?;
        write!(f, ", completed {completed})")
    }
}

impl std::error::Error for SystemException {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdr::Endian;

    #[test]
    fn each_kind_is_found_by_its_repository_id_and_travels() {
        assert_eq!(Kind::ALL.len(), 40);
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_repository_id(kind.repository_id()), Some(kind));
            for completed in [Completion::Yes, Completion::No, Completion::Maybe] {
                let exception = SystemException::new(kind)
                    .with_minor(7)
                    .with_completion(completed);
                for endian in [Endian::Big, Endian::Little] {
                    let mut writer = Writer::new(endian);
                    exception.write(&mut writer);
                    let mut reader = Reader::new(writer.bytes(), endian);
                    assert_eq!(SystemException::read(&mut reader), Ok(exception));
                }
            }
        }
    }

    #[test]
    fn an_exception_that_is_not_known_is_unknown_and_a_status_is_refused() {
        let mut writer = Writer::new(Endian::Big);
        writer.write_string("IDL:example.com/CORBA/ODD:1.0");
        writer.write_u32(5);
        writer.write_u32(2);
        let exception = SystemException::read(&mut Reader::new(writer.bytes(), Endian::Big));
        let expected = SystemException::new(Kind::Unknown).with_minor(5);
        assert_eq!(exception, Ok(expected.with_completion(Completion::Maybe)));
        let mut bytes = writer.into_bytes();
        *bytes.last_mut().unwrap() = 3;
        let error = SystemException::read(&mut Reader::new(&bytes, Endian::Big)).unwrap_err();
        assert!(error.to_string().contains("completion status"), "{error}");
    }

    #[test]
    fn it_says_what_it_is() {
        let exception = SystemException::new(Kind::Transient);
        assert_eq!(
            exception.to_string(),
            "CORBA::TRANSIENT (minor 0, completed NO)"
        );
        assert_eq!(
            exception.with_minor(OMG_MINOR | 2).to_string(),
            "CORBA::TRANSIENT (minor 0x4f4d0002, completed NO)"
        );
    }
}
