// Dark or light: as the system has it, unless the reader chose.

import { signal } from "@preact/signals";

export type Theme = "auto" | "dark" | "light";

function stored(): Theme {
  try {
    const value = localStorage.getItem("evenkeel-theme");
    return value === "dark" || value === "light" ? value : "auto";
  } catch {
    return "auto";
  }
}

export const theme = signal<Theme>(stored());
/** Counts changes of the colours in force; charts are drawn again with each. */
export const colours = signal(0);

export function setTheme(next: Theme): void {
  theme.value = next;
  try {
    if (next === "auto") localStorage.removeItem("evenkeel-theme");
    else localStorage.setItem("evenkeel-theme", next);
  } catch {
    // Then it lasts for this page only.
  }
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  colours.value++;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.value++);

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
