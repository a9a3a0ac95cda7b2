//! Linking of `libarm.so`.

fn main() {
    // Programs remember the library by this name and not by where it was built.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-soname,libarm.so");
    // A server that unloads and loads its modules must not lose what is in flight, nor
    // find a handler of forks gone: the library stays once it is loaded.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
