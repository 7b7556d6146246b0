"""What people run. Imports go from here to the runtime, never back."""
