// The login page: all that is served without a session.

import "./login.css";

try {
  const theme = localStorage.getItem("evenkeel-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // Then it is as the system has it.
}

const form = document.getElementById("login") as HTMLFormElement;
const user = document.getElementById("user") as HTMLInputElement;
const password = document.getElementById("password") as HTMLInputElement;
const problem = document.getElementById("problem")!;
const button = form.querySelector("button")!;
document.getElementById("host")!.textContent = location.host;

/** Back to where the session ended; nothing but a place within the console. */
function onward(): void {
  const next = new URLSearchParams(location.search).get("next") ?? "";
  location.replace("../console/" + (/^#\/[\w\-./%:?=&]*$/.test(next) ? next : ""));
}

async function ask(path: string, body?: unknown): Promise<Response> {
  return fetch(path, body === undefined ? { cache: "no-store" } : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), credentials: "same-origin", cache: "no-store" });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void login();
});

async function login(): Promise<void> {
  button.disabled = true;
  problem.textContent = "";
  try {
    const answer = await ask("/v1/login", { user: user.value, password: password.value });
    if (answer.ok) return onward();
    const told = (await answer.json().catch(() => ({}))) as { detail?: string };
    if (answer.status === 429) {
      const wait = Number(answer.headers.get("Retry-After"));
      problem.textContent = `Too many wrong passwords. ${wait > 0 ? `Try again in ${wait} s.` : "Try again later."}`;
    } else problem.textContent = answer.status === 401 ? "The user or the password is wrong." : (told.detail ?? `The balancer answers ${answer.status}.`);
    password.value = "";
    password.focus();
  } catch {
    problem.textContent = "The balancer does not answer.";
  } finally {
    button.disabled = false;
  }
}

// Nobody has to log in, or somebody has: nothing to do here.
void (async () => {
  try {
    const answer = await ask("/v1/session");
    const session = (await answer.json()) as { user: string | null; login: boolean; free: boolean };
    if (answer.ok && (session.user || session.free || !session.login)) onward();
  } catch {
    // The form says so when it is used.
  }
})();
