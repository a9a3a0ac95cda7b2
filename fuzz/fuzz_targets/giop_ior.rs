//! Any bytes as a reference, as it stands in messages and as a string: no panic, and what
//! is read is written again to what means the same.
#![no_main]

use evenkeel_giop::cdr::{Endian, Reader, Writer};
use evenkeel_giop::context::CodeSetInfo;
use evenkeel_giop::corbaloc::Reference;
use evenkeel_giop::ior::{IiopProfile, Ior};
use libfuzzer_sys::fuzz_target;

fn check(ior: &Ior) {
    assert_eq!(&ior.to_string().parse::<Ior>().unwrap(), ior);
    for endian in [Endian::Big, Endian::Little] {
        let mut writer = Writer::new(endian);
        ior.write(&mut writer);
        let again = Ior::read(&mut Reader::new(writer.bytes(), endian));
        assert_eq!(again.as_ref(), Ok(ior));
        for profile in ior.iiop_profiles() {
            let again = IiopProfile::decode(&profile.encode(endian)).unwrap();
            assert_eq!(again.as_ref(), Some(&profile));
            if let Some(info) = profile.code_sets() {
                assert_eq!(CodeSetInfo::decode(&info.encode(endian)), Ok(info));
            }
            let _ = profile.orb_type();
            assert!(profile.list_addresses().count() <= 1 + profile.components.len());
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    for endian in [Endian::Big, Endian::Little] {
        let mut reader = Reader::new(bytes, endian);
        if let Ok(ior) = Ior::read(&mut reader) {
            check(&ior);
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match text.parse::<Reference>() {
        Ok(Reference::Ior(ior)) => check(&ior),
        Ok(Reference::Name { context, .. }) => {
            assert!(!matches!(*context, Reference::Name { .. }));
        }
        Ok(Reference::Initial(_)) => {}
        Err(error) => drop(error.to_string()),
    }
});
