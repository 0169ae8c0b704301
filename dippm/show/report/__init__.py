"""Reports of answers: terminal tables and offline pages."""
