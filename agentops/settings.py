"""Django's settings: each knob of the product is read here, once, with its unit and its default."""

import base64
import hashlib
import os
import secrets
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent


def text(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def number(name: str, default: int) -> int:
    value = text(name, str(default))
    try:
        return int(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a whole number, not {value!r}") from None


def switch(name: str, default: bool = False) -> bool:
    return text(name, "1" if default else "0").lower() in ("1", "true", "yes", "on")


def mailer(url: str, folder: Path) -> dict[str, Any]:
    """Django's form of `smtps://user:password@host:port`; STARTTLS but on this machine, where nothing is encrypted."""
    if not url:
        return {
            "BACKEND": "django.core.mail.backends.filebased.EmailBackend",
            "OPTIONS": {"file_path": str(folder)},
        }
    parts = urlsplit(url)
    is_tls = parts.scheme == "smtps"
    options = {
        "host": parts.hostname,
        "port": parts.port or (465 if is_tls else 587),
        "username": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "use_ssl": is_tls,
        "use_tls": not is_tls and parts.hostname not in ("127.0.0.1", "localhost"),
        "timeout": 10,
    }
    return {"BACKEND": "django.core.mail.backends.smtp.EmailBackend", "OPTIONS": options}


# --- What kind of start this is ---------------------------------------------------------------------------------
AGENTOPS_DEMO = switch("AGENTOPS_DEMO")  # demo tenants, demo secrets, the provider process; set by `make up`
AGENTOPS_DATA = Path(text("AGENTOPS_DATA", str(BASE_DIR / ".agentops"))).resolve()
AGENTOPS_ROLE = text("AGENTOPS_ROLE", "all")  # which pool of runs a worker serves
TESTING = "pytest" in sys.modules
# Commands that touch no stored row (checks, migrations on paper, the demo shop's own orders) run without any secret.
PAPER_COMMANDS = {
    "makemigrations",
    "check",
    "collectstatic",
    "help",
    "--help",
    "export_openapi",
    "seed_orders",
}
ON_PAPER = (len(sys.argv) > 1 and sys.argv[1] in PAPER_COMMANDS) or "mypy" in Path(sys.argv[0]).parts[-1]
DEBUG = False

# --- Secrets ----------------------------------------------------------------------------------------------------
DEMO_SECRET = "agentops-demo-secret-never-use-outside-the-demo"


def secret(name: str) -> str:
    """A secret from the environment; in the demo, in tests and on paper one derived from the demo's own."""
    value = text(name)
    if not value and (AGENTOPS_DEMO or TESTING or ON_PAPER):
        return base64.b64encode(hashlib.sha256(f"{DEMO_SECRET}/{name}".encode()).digest()).decode()
    demo = base64.b64encode(hashlib.sha256(f"{DEMO_SECRET}/{name}".encode()).digest()).decode()
    if not value:
        raise ImproperlyConfigured(
            f"{name} is not set. Set it to 32 random bytes in base 64, for example: "
            f"export {name}=$(python -c 'import base64,os;print(base64.b64encode(os.urandom(32)).decode())')"
        )
    if value in (demo, DEMO_SECRET) and not AGENTOPS_DEMO:
        raise ImproperlyConfigured(f"{name} is the demo's secret. Outside the demo, set one of your own.")
    return value


SECRET_KEY = secret("AGENTOPS_SECRET_KEY")
AGENTOPS_MASTER_KEYS = secret(
    "AGENTOPS_MASTER_KEYS"
)  # base 64 of 32 bytes; several by comma, the first one seals
AGENTOPS_SIGNING_KEY = secret(
    "AGENTOPS_SIGNING_KEY"
)  # base 64 of 32 bytes: the Ed25519 seed of signed identities

# --- Limits and times -------------------------------------------------------------------------------------------
AGENTOPS_LEASE_SECONDS = number("AGENTOPS_LEASE_SECONDS", 30)
AGENTOPS_HOLD_SECONDS = number("AGENTOPS_HOLD_SECONDS", 5)  # between a person's approval and the sending
AGENTOPS_RATE_PER_MINUTE = number(
    "AGENTOPS_RATE_PER_MINUTE", 60_000 if AGENTOPS_DEMO else 600
)  # requests a token
AGENTOPS_APPROVAL_HOURS = number("AGENTOPS_APPROVAL_HOURS", 24)  # how long a proposal may be decided
AGENTOPS_ESCALATION = ("reviewer", "lead")  # groups of a tenant, in the order in which they are written to
AGENTOPS_COOL_DOWN_HOURS = number(
    "AGENTOPS_COOL_DOWN_HOURS", 24
)  # before people are asked again for what they rejected, on the same facts; a rule may say otherwise
AGENTOPS_SAME_TARGET_DAYS = number(
    "AGENTOPS_SAME_TARGET_DAYS", 30
)  # how long a success makes a person look at the next operation of that action on that target
AGENTOPS_BODY_BYTES = number("AGENTOPS_BODY_BYTES", 256 * 1024)
AGENTOPS_DRIVER_CAP = number("AGENTOPS_DRIVER_CAP", 400)  # runs one worker process carries at once
AGENTOPS_DRIVER_CONNECTIONS = number("AGENTOPS_DRIVER_CONNECTIONS", 8)
AGENTOPS_TOOL_THREADS = number("AGENTOPS_TOOL_THREADS", 8)
AGENTOPS_SEND_SECONDS = number("AGENTOPS_SEND_SECONDS", 10)  # time-out of one request to a provider
AGENTOPS_STREAM_HEARTBEAT_SECONDS = number(
    "AGENTOPS_STREAM_HEARTBEAT_SECONDS", 15
)  # silence of a stream at most
AGENTOPS_STREAM_RECHECK_SECONDS = number(
    "AGENTOPS_STREAM_RECHECK_SECONDS", 60
)  # between looks at a reader's rights
AGENTOPS_STREAM_STALL_SECONDS = number(
    "AGENTOPS_STREAM_STALL_SECONDS", 30
)  # a client that does not read is cut then
AGENTOPS_LOOKUP_LAG_SECONDS = number("AGENTOPS_LOOKUP_LAG_SECONDS", 2)  # the demo provider's declared lag

# --- Models and agents ------------------------------------------------------------------------------------------
AGENTOPS_MODEL = text("AGENTOPS_MODEL", "offline")  # offline, anthropic:NAME or openai:NAME
AGENTOPS_MODEL_PRICES = text(
    "AGENTOPS_MODEL_PRICES"
)  # "openai:name=2.5/10, …": US dollars a million tokens, in/out
AGENTOPS_AGENTS = ("agentops.demo.support_agent", "agentops.demo.assistant")  # one module an agent
AGENTOPS_MCP = switch("AGENTOPS_MCP")
AGENTOPS_A2A = switch("AGENTOPS_A2A")

# --- Where the outside is ---------------------------------------------------------------------------------------
PORT = number("PORT", 8000)
AGENTOPS_BASE_URL = text("AGENTOPS_BASE_URL", f"http://127.0.0.1:{PORT}")
AGENTOPS_PROXIES = text(
    "AGENTOPS_PROXIES"
)  # addresses by comma whose X-Forwarded-For and -Proto are believed
AGENTOPS_PROVIDER_URL = text("AGENTOPS_PROVIDER_URL")
AGENTOPS_PAYMENTS_URL = text("AGENTOPS_PAYMENTS_URL", AGENTOPS_PROVIDER_URL)
AGENTOPS_SHOP_URL = text("AGENTOPS_SHOP_URL")
AGENTOPS_MAIL_DIR = Path(text("AGENTOPS_MAIL_DIR", str(AGENTOPS_DATA / "mail")))
DEFAULT_FROM_EMAIL = text("AGENTOPS_MAIL_FROM", "Customer support <support@agentops.example>")
AGENTOPS_NOTICES_FROM = text("AGENTOPS_NOTICES_FROM", "AgentOps <agentops@agentops.example>")
# Mail to reviewers; the mail connector has accounts of its own. smtp(s)://user:password@host:port, in the demo a file a mail.
AGENTOPS_NOTICES_URL = text("AGENTOPS_NOTICES_URL", "" if AGENTOPS_DEMO else "smtp://localhost:25")
MAILERS = {"default": mailer(AGENTOPS_NOTICES_URL, AGENTOPS_DATA / "notices")}
AGENTOPS_WORKER_TOKEN = text("AGENTOPS_WORKER_TOKEN") or secrets.token_hex(
    16
)  # owner of this process's leases
AGENTOPS_LOG_JSON = switch("AGENTOPS_LOG_JSON", default=True)

# --- PostgreSQL and the broker ----------------------------------------------------------------------------------
APP_ROLE = "agentops_app"  # inserts and reads where rows are append-only; owns nothing


def database(url: str) -> dict[str, Any]:
    """Django's form of `postgresql://user:password@host:port/name`; the connection takes the application's role."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql") or not parts.path.strip("/"):
        raise ImproperlyConfigured("DATABASE_URL must look like postgresql://user:password@host:5432/name")
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    role = "" if TESTING else f"-c role={APP_ROLE} "  # tests move the clock and clean up, as the owner
    options["options"] = f"{role}-c lock_timeout=2s -c idle_in_transaction_session_timeout=10s"
    options["application_name"] = "agentops"
    options["connect_timeout"] = 5
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or 5432),
        "OPTIONS": options,
        "CONN_MAX_AGE": 0,
    }


DATABASE_URL = text("DATABASE_URL", "postgresql://agentops@127.0.0.1:5432/agentops")
REDIS_URL = text("REDIS_URL", "redis://127.0.0.1:6379/0")
DATABASES = {"default": database(DATABASE_URL)}
if not TESTING and ("celery" in sys.argv[0] or "serve" in sys.argv[1:2]):
    # Web and worker: many short pieces of work in threads, few connections.
    DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 12, "timeout": 10}

# --- Django -----------------------------------------------------------------------------------------------------
ALLOWED_HOSTS = [host for host in text("AGENTOPS_HOSTS", "127.0.0.1,localhost,[::1]").split(",") if host]
CSRF_TRUSTED_ORIGINS = [origin for origin in text("AGENTOPS_ORIGINS").split(",") if origin]
INSTALLED_APPS = [
    "agentops.kernel",
    "agentops.tenancy",
    "agentops.audit",
    "runs",
    "operations",
    "approvals",
    "agentops.webhooks",
    "agentops.engine",
    "agentops.api",
    "agentops.streaming",
    "agentops.cli",
    "agentops.console.apps.ConsoleConfig",
    "agentops.demo.apps.DemoConfig",
    "agentops.console.apps.ConsoleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "guardian",
    "channels",
]
MIDDLEWARE = [
    "agentops.telemetry.requests.RequestContextMiddleware",
    "agentops.api.problems.ProblemMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "agentops.urls"
ASGI_APPLICATION = "agentops.asgi.application"
AUTH_USER_MODEL = "tenancy.User"
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "guardian.backends.ObjectPermissionBackend",
]
GUARDIAN_MONKEY_PATCH_USER = False
ANONYMOUS_USER_NAME = None
AUTH_PASSWORD_VALIDATORS = [{"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"}]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGIN_URL = "admin:login"
LOGIN_REDIRECT_URL = "admin:index"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": "agentops"},
    }
}
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = True
FORMAT_MODULE_PATH = ["agentops.console.formats"]
STATIC_URL = "/static/"
STATIC_ROOT = Path(text("AGENTOPS_STATIC_ROOT", str(AGENTOPS_DATA / "static")))
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

# --- What a browser may do with our pages ------------------------------------------------------------------------
SECURE_CSP = {
    "default-src": ["'none'"],
    "script-src": ["'self'"],
    "style-src": ["'self'"],
    "img-src": ["'self'", "data:"],
    "font-src": ["'self'"],
    "connect-src": ["'self'"],
    "form-action": ["'self'"],
    "frame-ancestors": ["'none'"],
    "base-uri": ["'none'"],
}
CSRF_FAILURE_VIEW = "agentops.console.errors.stale_form"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SESSION_ENGINE = "agentops.console.sessions"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
HTTPS = AGENTOPS_BASE_URL.startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_SSL_REDIRECT = False  # TLS ends at the proxy in front
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
X_FRAME_OPTIONS = "DENY"
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024

# --- Celery: rings, knows nothing -------------------------------------------------------------------------------
CELERY_BROKER_URL = REDIS_URL
CELERY_TIMEZONE = "UTC"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_timeout": 5, "socket_connect_timeout": 2}
CELERY_TASK_DEFAULT_QUEUE = "agentops"
CELERY_BEAT_SCHEDULE = {
    "sweep": {"task": "agentops.engine.tasks.sweep", "schedule": 5.0, "options": {"expires": 10}},
    "expire": {"task": "agentops.engine.tasks.expire_approvals", "schedule": 5.0, "options": {"expires": 10}},
    "notices": {
        "task": "agentops.engine.tasks.tell_reviewers",
        "schedule": 5.0,
        "options": {"expires": 10},
    },
    "effects": {
        "task": "agentops.engine.tasks.sweep_effects",
        "schedule": 600.0,  # looks whether a day is over, and goes on with what is not through
        "options": {"expires": 300},
    },
    "partitions": {
        "task": "agentops.engine.tasks.open_partitions",
        "schedule": 3600.0,
        "options": {"expires": 600},
    },
}

LOGGING_CONFIG = None  # agentops.telemetry.logs configures logging, once, when the apps are ready
