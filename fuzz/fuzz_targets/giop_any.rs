//! Any bytes as an Any of GIOP: no panic, bounded work, and what is understood is the same
//! in every other form, and is its own equivalent without its aliases.
#![no_main]

use evenkeel_giop::any::Any;
use evenkeel_giop::cdr::{Endian, Reader, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&form, bytes)) = data.split_first() else {
        return;
    };
    // The first byte says the form of the message: byte order, alignment and version.
    let of = |form: u8| {
        let endian = if form & 1 == 0 {
            Endian::Big
        } else {
            Endian::Little
        };
        (endian, usize::from(form >> 1 & 7), 1 + (form >> 4 & 1))
    };
    let (endian, before, minor) = of(form);
    let mut reader = Reader::at_offset(before, bytes, endian).of_minor(minor);
    let Ok(any) = Any::read(&mut reader) else {
        return;
    };
    let plain = any.type_code().without_aliases();
    assert!(plain.is_equivalent(any.type_code()));
    for other in [form ^ 1, form.wrapping_add(2), form ^ 0x10] {
        let (endian, before, minor) = of(other);
        let mut writer = Writer::at_offset(before, endian).of_minor(minor);
        any.write(&mut writer);
        let bytes = writer.into_bytes();
        let mut reader = Reader::at_offset(before, &bytes, endian).of_minor(minor);
        assert_eq!(Any::read(&mut reader).as_ref(), Ok(&any));
        assert_eq!(reader.remaining_bytes(), 0);
    }
});
