// Before the first picture, so that it has the right colours at once.
try {
  const theme = localStorage.getItem("evenkeel-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {}
