export { send } from "../api";
export { needs } from "../ui/kit";
