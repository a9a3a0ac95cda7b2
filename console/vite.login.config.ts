import { defineConfig } from "vite";

// The login page is a bundle of its own: it is all that is served without a session.
export default defineConfig({
  root: "login",
  base: "./",
  publicDir: false,
  build: { outDir: "../dist/login", emptyOutDir: true, target: "es2022", modulePreload: { polyfill: false }, assetsInlineLimit: 0, reportCompressedSize: false },
});
